"""Simulated agents: steps take what was measured, and the policy of prompts beside answers does
what it was chosen for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.run import tokenspeed
from tokenspeed.bench.agentic import inside
from tokenspeed.bench.agentic.records import Level, summarise
from tokenspeed.bench.agentic.simulated import Costs, Simulated
from tokenspeed.bench.agentic.workload import WORKLOADS, Corpus, scripts
from tokenspeed.bench.plans import plan_of
from tokenspeed.cli import main
from tokenspeed.hardware.profiles import load_hardware
from tokenspeed.plan import Plan

H200 = "NVIDIA H200"
QWEN = "qwen3-8b-h200x1-latency"
AGENTS = "qwen3-8b-h200x1-agentic"
# Between the sessions of two levels of a sweep.
LEVEL = 1_000_000
WORDS = Corpus(" ".join(f"w{number}" for number in range(3000)))


def planned(repo: Path, name: str, *overrides: str) -> Plan:
    return plan_of(repo / "recipes" / f"{name}.yaml", overrides, load_hardware("nvidia-h200"))


def test_steps_take_what_was_measured(repo: Path) -> None:
    errors: dict[object, float] = {}
    results = repo / "tokenspeed" / "bench" / "results"
    for name in (QWEN, "llama31-8b-h200x1-latency"):
        costs = Costs.of(planned(repo, name), H200)
        kept = json.loads((results / f"decode-{name}-nvidia-h200.json").read_text())
        # The arithmetic of more rows does not hide behind memory as it is taken to.
        for point in (point for point in kept["points"] if point["batch"] <= 64):
            seconds = costs.decode(np.full(point["batch"], float(point["context"])))
            errors[name, point["batch"], point["context"]] = seconds / point["step_ms"] * 1e3 - 1
    llama = json.loads((results / "prefill-llama31-8b-h200x1-latency-nvidia-h200.json").read_text())
    for point in llama["points"]:
        new, cached = np.array([float(point["new"])]), np.array([float(point["cached"])])
        errors["prompt", point["new"]] = costs.prompts(new, cached) / point["ttft_ms"] * 1e3 - 1
    assert len(errors) > 14
    assert max(map(abs, errors.values())) < 0.12, errors


MIXTURES = {
    "deepseek-v2-lite-h200x1-latency": (),
    "deepseek-v2-lite-h200x1-latency-fp8": ("kv.dtype=fp8",),
    "qwen3-30b-a3b-h200x1-throughput": (),
    "qwen3-30b-a3b-h200x1-fp8": (),
    "gpt-oss-20b-h200x1-latency": (),
}


@pytest.mark.parametrize("kept", MIXTURES)
def test_steps_of_mixtures_take_what_was_measured(repo: Path, kept: str) -> None:
    costs = Costs.of(planned(repo, kept.replace("latency-fp8", "latency"), *MIXTURES[kept]), H200)
    file = repo / "tokenspeed" / "bench" / "results" / f"decode-{kept}-nvidia-h200.json"
    points = json.loads(file.read_text())["points"]
    for point in points:
        seconds = costs.decode(np.full(point["batch"], float(point["context"])))
        assert seconds * 1e3 == pytest.approx(point["step_ms"], rel=0.15)
    assert len(points) > 1


@pytest.mark.parametrize("kind", ["latency", "agentic"])
def test_agents_of_a_mixture_get_what_was_measured(repo: Path, kind: str) -> None:
    """The sessions that one H200 served: 16 and 8 users, in looks that hold first turns."""
    name = f"deepseek-v2-lite-h200x1-{kind}"
    file = repo / "tokenspeed/bench/results" / f"agentic-{name}-12-experts-nvidia-h200.json"
    measured = json.loads(file.read_text())
    plan = planned(repo, name, *measured["overrides"])
    run = Simulated(plan, Costs.of(plan, H200, measured["uniform_experts"]))
    ids, workload = inside.Ids(WORDS, plan.model.config.vocab_size), WORKLOADS["varied"]
    levels = {one["users"]: one for one in measured["levels"]["varied"]}
    order = [users for users in (20, 16, 8, 4) if users in levels]
    for users in (16, 8):
        kept = levels[users]
        each = scripts(workload, measured["seed"], order.index(users) * LEVEL)
        seen = inside.run_level(
            run, workload, ids, users, measured["warm_up"], kept["seconds"], each
        )
        level = summarise(seen.records, users, 1, seen.seconds)
        assert level.tps_user == pytest.approx(kept["tps_user"], rel=0.05)
        assert level.output_s == pytest.approx(kept["output_s"], rel=0.05)
        # By a first turn at most, at the end of a look.
        assert level.hit_rate == pytest.approx(kept["hit_rate"], abs=0.012)


def test_a_step_without_a_graph_takes_the_host_its_time(repo: Path) -> None:
    plan = planned(repo, "deepseek-v2-lite-h200x1-latency")
    costs = Costs.of(plan, H200, 12)
    run = Simulated(plan, replace(costs, launching=1.0))
    past = run.prompt(16_001)
    with run.pretending():
        run.until_first_tokens({run.submit(past, 1)})
    for new, least, most in ((1_024, 1.0, 1.001), (1, 0.0, 0.1)):
        began = run.clock()
        asked = run.submit(np.concatenate((past[:16_000], run.prompt(new))), 1)
        run.until_first_tokens({asked})
        assert least <= run.clock() - began < most


def test_fewer_experts_to_choose_from_are_read_sooner(repo: Path) -> None:
    """Eight rows that take 6 of 12 read 12 (1 - 2^-8) of a layer's 64."""
    plan = planned(repo, "deepseek-v2-lite-h200x1-latency")
    costs, rows = Costs.of(plan, H200, 12), np.zeros(8)
    read = costs.floors.expert_bytes * 12 / 64 * (1 - 0.5**8) / costs.floors.ceilings.read
    without = replace(costs, experts=1e9)
    assert costs.decode(rows) - without.decode(rows) == pytest.approx(read / 0.83)
    assert costs.decode(rows) < Costs.of(plan, H200, 0).decode(rows)


def level(plan: Plan, users: int) -> Level:
    run, workload = Simulated(plan, Costs.of(plan, H200)), WORKLOADS["fixed"]
    ids = inside.Ids(WORDS, plan.model.config.vocab_size)
    seen = inside.run_level(run, workload, ids, users, 5.0, 60.0, scripts(workload, 0))
    return summarise(seen.records, users, 1, seen.seconds)


def test_the_next_turn_does_not_wait_behind_first_turns(repo: Path) -> None:
    """At eight users, whose first turns of 42,000 tokens never end; seconds of the simulation."""
    both = ("kv.dtype=fp8", "model.max_context=72000", "advanced.beyond_model_context=true",
            "limits.max_mixed_tokens=128")  # fmt: skip
    fixed = ("advanced.cache_lead=0s", "advanced.max_backlog_tokens=128")
    plan = planned(repo, QWEN, *both)
    assert (plan.scheduler.max_backlog_tokens, plan.scheduler.cache_lead_seconds) == (512, 20.0)
    before, after = level(planned(repo, QWEN, *both, *fixed), 8), level(plan, 8)
    for one in (before, after):
        assert one.ttft_first is not None and one.ttft_later is not None
        assert one.ideal_hit_rate - 0.005 < one.hit_rate <= one.ideal_hit_rate
    assert before.ttft_later[1] > 2
    assert after.ttft_later[1] < 0.6
    assert after.ttft_first[0] < before.ttft_first[0]
    assert after.output_s > before.output_s


def test_of_answers_under_way_only_what_is_seen_counts(repo: Path) -> None:
    """Eight users come to life amid answers and are looked at before any has got a token."""
    plan, workload = planned(repo, AGENTS), WORKLOADS["fixed"]
    run = Simulated(plan, Costs.of(plan, H200))
    ids = inside.Ids(WORDS, plan.model.config.vocab_size)
    seen = inside.run_level(run, workload, ids, 8, 1e-6, 1.0, scripts(workload, 0))
    amid = [record for record in seen.records if record.asked_s == 0]
    assert len(amid) == 8 and not any(record.begun for record in amid)
    # One user alone gets 200 tokens a second.
    assert 1 < max(record.output for record in amid) < 200


def test_the_policy_bounds_what_a_step_takes_longer(repo: Path) -> None:
    """500 new tokens on 50k beside 8 users at 16k: four chunks as before, however they pile up
    elsewhere."""
    plan = planned(
        repo, "llama31-8b-h200x1-latency", "model.max_context=72000", "limits.max_running=32"
    )
    run = Simulated(plan, Costs.of(plan, H200))
    past = run.prompt(49_985)
    with run.pretending():
        run.until_first_tokens({run.submit(past, 1)})
        users = {run.submit(run.prompt(16_000), 200) for _ in range(8)}
        run.until_first_tokens(users)
    began = run.clock()
    asked = run.submit(np.concatenate((past[:49_984], run.prompt(500))), 1)
    run.until_first_tokens({asked})
    assert run.clock() - began < 0.085
    assert run.take_delays()[1] < 0.012


def held(plan: Plan, tokens: int, sessions: int) -> int:
    """How many of so many sessions are still cached once all were computed, the last ones first."""
    run = Simulated(plan, Costs.of(plan, H200))
    prompts = [run.prompt(tokens) for _ in range(sessions)]
    for prompt in prompts:
        run.until_first_tokens({run.submit(prompt, 1)})
    for count, prompt in enumerate(reversed(prompts)):
        run.submit(prompt, 1)
        cached = [delta.cached_tokens for _ in range(4) for delta in run.deltas()]
        if max(one or 0 for one in cached) < tokens - 2 * plan.cache.block_size:
            return count
    return sessions


def test_latents_with_a_scale_per_token_hold_more_sessions(repo: Path) -> None:
    """In as many bytes, 1.79 times the tokens."""
    name = "deepseek-v2-lite-h200x1-agentic"
    kept = {
        dtype: held(planned(repo, name, "kv.size=6GiB", f"kv.dtype={dtype}"), 5000, 80)
        for dtype in ("bfloat16", "fp8")
    }
    assert kept["bfloat16"] > 36
    assert kept["fp8"] >= 1.75 * kept["bfloat16"]


AGENTIC = ("bench", "agentic", "--simulate", "nvidia-h200", "--users", "1", "4")


def test_the_verb_simulates_and_keeps_the_curve_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "agentic-qwen3-8b-h200x1-agentic-nvidia-h200-simulated"
    words = [*AGENTIC, "--seconds", "3", "6", "--workload", "fixed", "varied"]
    # The default recipe has room for every workload as it is.
    assert main(words) == 0
    assert f"not kept: --out FOLDER writes {name}.json" in " ".join(capsys.readouterr().out.split())
    assert list(tmp_path.iterdir()) == []
    assert main([*words, "--scale", "0.3", "--out", "kept/here", "--label", "my own"]) == 0
    written = capsys.readouterr().out
    assert "varied x 0.3" in written and "…" not in written
    (path,) = tmp_path.glob("kept/here/*.json")
    assert path.stem == "agentic-my-own-nvidia-h200-simulated"
    kept = json.loads(path.read_text())
    assert kept["simulated"] and kept["device"] == "NVIDIA H200, simulated"
    levels = kept["levels"]["varied x 0.3"]
    assert [(one["users"], round(one["seconds"])) for one in levels] == [(1, 3), (4, 6)]
    assert all(one["delay"][1] < 0.07 for one in kept["levels"]["fixed x 0.3"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("agentic --users 0", "--users: 0 is not a whole number from 1 on"),
        ("agentic --simulate nvidia-l4", "steps of NVIDIA H200 are known"),
        ("prefill --beside 500+16000", "--beside: 500+16000 is not NEW+CACHED@USERSxCONTEXT"),
    ],
)
def test_it_is_refused_before_torch_is_imported(words: str, said: str) -> None:
    done = tokenspeed("bench", *words.split(), blocked=("torch",))
    assert done.code == 64, done.err
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--devices 0", "--devices: 0 is not a whole number from 1 on"),
        ("--users 4 -3", "--users: -3 is not a whole number from 1 on"),
        ("--scale nan", "--scale: nan is not a number above 0"),
        ("--scale 0", "--scale: 0 is not a number above 0"),
        ("--seconds -1", "--seconds: -1 is not a number above 0"),
        ("--shape 100/500/2-3/50-10/50", "--shape: 100/500/2-3/50-10/50 is not SYSTEM/FIRST"),
        ("--shape 100/500/0/50/0", "--shape: 100/500/0/50/0 is not SYSTEM/FIRST"),
        ("--url http://127.0.0.1:1", "--url needs --model"),
        ("--recipe a.yaml b.yaml --label c", "one --label for several recipes"),
        ("--users 1 2 3 --seconds 4 5", "2 times --seconds for 3 numbers of users"),
        # 18,700 tokens that no scale changes and 0.6 x 50,000 are the 48,700 that fit.
        ("--set model.max_context=48700", "or shorter prompts: --scale 0.6\n"),
        ("--set model.max_context=48700 --scale 0.8", "or shorter prompts: --scale 0.6\n"),
        ("--set model.max_context=48700", "--set model.max_context=68700"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["bench", "agentic", "--simulate", "nvidia-h200", *words.split()])
    assert code == 64
    assert said in capsys.readouterr().err
