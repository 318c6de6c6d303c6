"""The whole engine on a GPU in bfloat16 says what it says on the CPU in float32.

The CPU engine with the torch kernels scores every answer of the GPU: where the GPU's token is not
the likeliest one, the likeliest must be so by less than rounding explains.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tokenspeed_kernels.launch_triton import is_hopper
from tokenspeed_kernels.spec import Device

from tests.rigs.drive import GREEDY, Answer, Driver, driver
from tests.rigs.gains import SCORED, Scale
from tests.rigs.plans import tiny_plan
from tests.rigs.rand import FAMILIES, build_rand, rand_prompts
from tests.rigs.rounded import Rounded
from tokenspeed.plan import Plan, WeightFormat
from tokenspeed.request import SamplingParams

pytestmark = pytest.mark.gpu

NEW_TOKENS = 24
# Natural logarithms; the likeliest tokens of a random model are often less than 1 apart. Over 93
# such models the torch kernels in bfloat16 on a CPU left those in float32 by up to 0.62 in the
# worst of 16 answers, by up to 0.09 in their mean. One head at 0.9 of what it is makes a mean of
# 0.13 to 0.46, one matrix at 1.25 one of 0.29 to 0.86; a fault of a few rows, where it shows at
# all, a worst of 2.4 and more.
TIE = 1.0
MEAN_TIE = 0.125
# Few rows in 16 bits instead of float8.
WIDENED = {
    "linear_float8_rows": "linear_fp8_triton",
    "linear_silu_mul_float8_rows": "linear_silu_mul_triton",
    "linear_float8_blocks": "linear_fp8_triton",
    "linear_silu_mul_float8_blocks": "linear_silu_mul_triton",
}
GRAPHS = (1, 2, 4, 8, 16)
TOKEN_GRAPHS = (16, 48, 64)
LENGTHS = (1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 80, 3, 5, 70, 200)
PROMPTS = [rand_prompts(1, length, seed=2)[0] for length in LENGTHS]
HALVES = WeightFormat.BFLOAT16


def gpu_plan(folder: Path, **changes: object) -> Plan:
    major, minor = torch.cuda.get_device_capability()
    settings: dict[str, object] = {
        "device": Device("cuda", f"sm_{major}{minor}"),
        "activations": "bfloat16",
        "kv_dtype": "bfloat16",
        "linear_format": HALVES,
        "embedding_format": HALVES,
        "graphs": GRAPHS,
        "token_graphs": TOKEN_GRAPHS,
    }
    return tiny_plan(folder, **(settings | changes))


class Reference:
    """The CPU engine, exact over the same weights in bfloat16."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        self._folder = folder
        plan = tiny_plan(
            folder, reference_kernels=True, linear_format=HALVES, embedding_format=HALVES,
            num_blocks=600,
        )  # fmt: skip
        device = dataclasses.replace(plan.device, threads=threads)
        self._plan = dataclasses.replace(plan, device=device)

    def gaps(self, prompts: Sequence[Sequence[int]], answers: Sequence[Answer]) -> list[float]:
        """For each answer how far its worst token lies below the likeliest, up to the first one
        that differs."""
        scored = SamplingParams(temperature=0.0, prompt_logprobs=1)
        whole = [[*p, *a.tokens] for p, a in zip(prompts, answers, strict=True)]
        with driver(self._plan, self._folder) as run:
            results = run.generate(whole, 1, scored)
        gaps = []
        for prompt, result in zip(prompts, results, strict=True):
            assert result.prompt_logprobs is not None
            gap = 0.0
            for entry in result.prompt_logprobs[len(prompt) :]:
                assert entry is not None
                gap = entry.top[0][1] - entry.logprob
                if gap > 0:
                    break
            gaps.append(gap)
        return gaps


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with heads that the GPU kernels take."""
    path = tmp_path_factory.mktemp(request.param) / "model"
    return build_rand(path, request.param, seed=11, head_dim=64, hidden_size=128, qk_scale=1.0)


def check(folder: Path, prompts: list[list[int]], answers: list[Answer]) -> None:
    """Of few answers one that happens to stray is much of the mean, so that is asked of many."""
    assert all(len(answer.tokens) == NEW_TOKENS for answer in answers)
    gaps = Reference(folder).gaps(prompts, answers)
    assert max(gaps) < TIE, gaps
    assert len(gaps) < len(PROMPTS) or statistics.fmean(gaps) < MEAN_TIE, gaps


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("graphs", [GRAPHS, ()], ids=["graphs", "eager"])
def test_tokens_equal_the_cpu(folder: Path, graphs: tuple[int, ...], depth: int) -> None:
    plan = gpu_plan(
        folder, graphs=graphs, token_graphs=TOKEN_GRAPHS if graphs else (),
        in_flight_depth=depth, max_step_tokens=64,
    )  # fmt: skip
    with driver(plan, folder) as run:
        cold = run.generate(PROMPTS, NEW_TOKENS)
        warm = run.generate(PROMPTS, NEW_TOKENS)
        one = run.generate(PROMPTS[-1:], NEW_TOKENS)
    check(folder, PROMPTS, cold)
    check(folder, PROMPTS, warm)
    check(folder, PROMPTS[-1:], one)


@pytest.mark.parametrize(
    ("kept", "instead"),
    [
        (WeightFormat.FP8, {}), (WeightFormat.FP8, WIDENED),
        (WeightFormat.FP8_BLOCK, {}), (WeightFormat.FP8_BLOCK, WIDENED),
    ],
    ids=["fp8", "fp8-widened", "blocks", "blocks-widened"],
)  # fmt: skip
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "fp8"])
def test_float8(folder: Path, kept: WeightFormat, kv_dtype: str, instead: dict[str, str]) -> None:
    """Weights in float8, and a cache too; all prompts in one step, whose rows are rounded."""
    plan = gpu_plan(
        folder, linear_format=kept, kv_dtype=kv_dtype, in_flight_depth=1,
        max_step_tokens=sum(LENGTHS),
    )  # fmt: skip
    kernels = tuple(
        dataclasses.replace(choice, kernel=instead.get(choice.kernel, choice.kernel))
        for choice in plan.kernels
    )
    assert not instead or kernels != plan.kernels
    plan = dataclasses.replace(plan, kernels=kernels)
    with driver(plan, folder) as run:
        answers = run.generate(PROMPTS, 2 * NEW_TOKENS, SCORED)
    reference = Rounded(plan, folder, len(PROMPTS), is_hopper(torch.device("cuda")))
    texts = [(prompt, answer.tokens) for prompt, answer in zip(PROMPTS, answers, strict=True)]
    likeness = Scale(reference, texts).weigh(answers)
    assert likeness.holds, likeness


def test_more_rows_than_the_largest_graph(folder: Path) -> None:
    with driver(gpu_plan(folder, graphs=(1, 4)), folder) as run:
        answers = run.generate(PROMPTS, NEW_TOKENS)
    check(folder, PROMPTS, answers)


def test_preempted_requests(folder: Path) -> None:
    prompts = rand_prompts(6, 30, seed=3)
    plan = gpu_plan(
        folder, num_blocks=13, in_flight_depth=1, max_step_tokens=32, token_graphs=(16, 32)
    )
    with driver(plan, folder) as run:
        answers = run.generate(prompts, NEW_TOKENS)
        assert run.loop.stats().preemptions > 0
    check(folder, prompts, answers)


SAMPLED = (
    SamplingParams(temperature=0.9, top_k=50, top_p=0.9, min_p=0.01, seed=5),
    SamplingParams(temperature=1.5, seed=-3),
    GREEDY,
)


@pytest.mark.parametrize("depth", [0, 1])
def test_graphs_draw_what_launched_kernels_draw(folder: Path, depth: int) -> None:
    """The very same tokens, where steps have as many rows with graphs as without: products and
    attention are cut by the number of rows."""
    most = 64
    prompts = rand_prompts(most, 1, seed=4)

    def tokens(graphs: tuple[int, ...]) -> list[list[int]]:
        plan = gpu_plan(
            folder, graphs=graphs, token_graphs=(), in_flight_depth=depth, max_running=most,
            num_blocks=600,
        )  # fmt: skip
        with driver(plan, folder) as run:
            sampled = itertools.cycle(SAMPLED)
            ids = [run.submit(p, NEW_TOKENS, next(sampled)) for p in prompts]
            run.run()
            return [run.answers[request_id].tokens for request_id in ids]

    assert tokens((most,)) == tokens(())


def test_rows_that_ask_for_more_ride_along(folder: Path) -> None:
    """Penalties, bias and log-probabilities in one batch with rows that only draw."""
    wishes = (
        *SAMPLED,
        SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.8),
        SamplingParams(temperature=0.0, logit_bias=((7, 100.0),)),
        SamplingParams(temperature=0.0, logprobs=2),
    )
    prompt = PROMPTS[9]
    with driver(gpu_plan(folder, in_flight_depth=1), folder) as run:
        ids = [run.submit(prompt, NEW_TOKENS, params) for params in wishes]
        run.run(check=True)
        answers = [run.answers[request_id] for request_id in ids]
        alone = _alone(run, prompt)
    assert answers[4].tokens == [7] * NEW_TOKENS
    assert len(answers[5].logprobs) == NEW_TOKENS
    assert all(entry.top[0][0] == entry.token for entry in answers[5].logprobs)
    assert len(set(answers[3].tokens)) > len(set(answers[2].tokens)) // 2
    check(folder, [prompt] * 3, [answers[2], answers[5], alone])


def _alone(run: Driver, prompt: list[int]) -> Answer:
    return run.generate([prompt], NEW_TOKENS)[0]
