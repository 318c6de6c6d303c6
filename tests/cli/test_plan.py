"""`tokenspeed plan`: for machines that are not here, where nothing heavy is installed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.cli.run import tokenspeed
from tokenspeed.cli import main
from tokenspeed.cli.messages import render
from tokenspeed.cli.render import error_text
from tokenspeed.errors import Problem, UsageError, Where
from tokenspeed.plan import Plan

DENSE = "recipes/qwen3-8b-h200x1-latency.yaml"
H200 = ("--hardware", "nvidia-h200")
HEAVY = ("torch", "triton", "transformers", "numpy", "gguf", "safetensors", "starlette")


def test_planning_needs_no_torch() -> None:
    """Nor anything else of what runs the plan."""
    outcome = tokenspeed("plan", DENSE, *H200, blocked=HEAVY)
    assert outcome.code == 0, outcome.err
    assert outcome.err == ""
    assert "NVIDIA H200" in outcome.out
    for section in ("decisions", "kernels", "memory: 126.4GiB of 140.4GiB"):
        assert f"\n{section}\n" in outcome.out
    assert "\x1b" not in outcome.out


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_data_needs_no_terminal_library(output: str) -> None:
    outcome = tokenspeed("plan", DENSE, *H200, "--output", output, blocked=("rich", *HEAVY))
    assert outcome.code == 0, outcome.err
    body = json.loads(outcome.out) if output == "json" else yaml.safe_load(outcome.out)
    assert list(body) == ["digest", "plan", "decisions", "hardware"]
    plan = Plan.from_json(json.dumps(body["plan"]).encode())
    assert plan.digest() == body["digest"]
    assert plan.name == "qwen3-8b-h200x1-latency"


def plan_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main(["plan", *arguments, "--output", "json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert isinstance(body, dict)
    return body


def test_overrides_and_origin(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(repo / DENSE)
    arguments = ["plan", recipe, *H200, "--origin", "--set", "kv.block_size=32"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "--set kv.block_size=32" in out
    assert re.search(r"kind +cuda +recipe +qwen3-8b-h200x1-latency\.yaml:4:9\n", out)
    assert main([*arguments[:4], "--set", "kv.block_size=32"]) == 0
    assert re.search(r"kind +cuda +recipe +line 4\n", capsys.readouterr().out)


def test_the_machine_of_a_plan_can_be_planned_for_elsewhere(
    repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(repo / "recipes/smollm2-135m-cpu.yaml")
    here = plan_json(capsys, recipe)
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(here["hardware"]))
    assert plan_json(capsys, recipe, "--hardware", str(path)) == here


def test_this_machine(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = plan_json(capsys, str(repo / "recipes/smollm2-135m-cpu.yaml"))
    plan = body["plan"]
    assert isinstance(plan, dict)
    assert plan["device"]["kind"] == "cpu"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--hardware", "nvidia-h20"], 66, "did you mean nvidia-h200?"),
        (["--hardware", "cpu"], 78, "error[TS-H010]: device: the recipe asks for a GPU"),
        ([*H200, "--set", "kv.size=4GB"], 65, "error[TS-R014]: kv.size"),
        ([*H200, "--set", "model.max_context=50000"], 78, "write at most 40960"),
        ([*H200, "--set", "model.source=hf:a/b"], 78, "nothing is known of hf:a/b"),
        ([*H200, "--set", "kv"], 64, "is not KEY=VALUE"),
    ],
)
def test_what_cannot_be_planned(
    repo: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    assert main(["plan", str(repo / DENSE), *arguments]) == code
    streams = capsys.readouterr()
    assert streams.out == ""
    assert message in streams.err


def test_a_new_model_needs_its_config_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the name that nobody knows to a plan, by what the messages say."""
    recipe = tmp_path / "new.yaml"
    head = "version: 1\nname: new\nmodel:\n  source: "
    recipe.write_text(f"{head}hf:Qwen/Qwen3-8C\n")
    assert main(["plan", str(recipe), *H200]) == 78
    said = capsys.readouterr().err
    assert "did you mean hf:Qwen/Qwen3-8B" in said
    assert "source: path:FOLDER, with load: dummy" in said
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120,
        "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "max_position_embeddings": 40960, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text(json.dumps(config))
    recipe.write_text(f"{head}path:folder\n")
    assert main(["plan", str(recipe), *H200]) == 78
    assert "load: dummy" in capsys.readouterr().err
    recipe.write_text(f"{head}path:folder\n  load: dummy\n")
    assert main(["plan", str(recipe), *H200]) == 0
    assert "27.51GiB" in capsys.readouterr().out  # 14.8 billion parameters of 2 bytes


def test_an_unmet_need_is_shown(repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is whole all the same: 0, and the need is on the page."""
    assert main(["plan", str(repo / DENSE), *H200, "--set", "parallel.attention.tp=2"]) == 0
    out = capsys.readouterr().out
    assert "cannot run here: `up` would refuse this plan" in out
    assert "parallel groups" in out


def test_colour_changes_no_word_of_an_error() -> None:
    place = Where("x.yaml")
    problem = Problem(code="TS-C001", message="a [b] c", where=place, path="k", hint="[d]")
    text = render(UsageError(problem))
    styled = error_text(text)
    assert styled.plain == text
    assert styled.spans


def test_markdown_needs_no_terminal_library_either() -> None:
    outcome = tokenspeed("plan", DENSE, *H200, "--output", "md", blocked=("rich", *HEAVY))
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "# qwen3-8b-h200x1-latency"
    assert "| op | kernel | why |" in lines
    assert "|  | not rms_norm_avx2 | runs on cpu, the device is cuda |" in lines
    tables = [line for line in lines if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


def test_errors_are_data_for_who_asks_for_data(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(repo / DENSE), *H200, "--output", "json"]
    assert main(["plan", *arguments, "--set", "model.max_context=50000"]) == 78
    streams = capsys.readouterr()
    assert streams.err == ""
    (problem,) = json.loads(streams.out)["problems"]
    assert (problem["code"], problem["path"]) == ("TS-R020", "model.max_context")
    assert problem["where"]["file"] == "--set model.max_context=50000"
