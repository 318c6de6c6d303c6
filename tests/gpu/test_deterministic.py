"""With ordered kernels a request gets the same answer and log-probabilities, to the last bit, alone
or among others, however its prompt is cut and whatever of it is cached, with graphs and without."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.gpu.test_engine import PROMPTS, gpu_plan
from tests.rigs.drive import Answer, driver
from tests.rigs.rand import build_rand, rand_prompts
from tokenspeed.request import SamplingParams

pytestmark = pytest.mark.gpu

NEW_TOKENS = 24
MOST = 64
# The last one's keys are of several parts.
ASKED = [*PROMPTS[:15], *rand_prompts(1, 700, seed=6)]
WISHES = (
    SamplingParams(temperature=0.9, top_k=50, top_p=0.9, seed=5, logprobs=3),
    SamplingParams(temperature=0.0, logprobs=1),
)


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model: products without a bias are split, those with one are not."""
    path = tmp_path_factory.mktemp(request.param) / "model"
    return build_rand(path, request.param, seed=11, head_dim=64, hidden_size=128, qk_scale=1.0)


def facts(answer: Answer) -> tuple[object, ...]:
    assert len(answer.logprobs) == NEW_TOKENS
    return tuple((entry.token, entry.logprob, entry.top) for entry in answer.logprobs)


def test_answers_do_not_depend_on_the_batch(folder: Path) -> None:
    found: dict[tuple[int, tuple[int, ...]], set[object]] = {}
    for graphs, step in (((1, 16, MOST), MOST), ((), 512)):
        plan = gpu_plan(
            folder, ordered=True, graphs=graphs, token_graphs=(16, 64) if graphs else (),
            in_flight_depth=1 if graphs else 0, max_running=MOST, max_step_tokens=step,
            num_blocks=1200, max_model_len=1024,
        )  # fmt: skip
        with driver(plan, folder) as run:
            for batch, (kind, wish) in itertools.product(
                (ASKED[4:5], ASKED[-1:], ASKED, ASKED * 4), enumerate(WISHES)
            ):
                for prompt, answer in zip(
                    batch, run.generate(batch, NEW_TOKENS, wish), strict=True
                ):
                    found.setdefault((kind, tuple(prompt)), set()).add(facts(answer))
    assert {len(answers) for answers in found.values()} == {1}


def test_preempted_requests_go_on_alike(folder: Path) -> None:
    prompts = rand_prompts(6, 30, seed=3)
    answers, preemptions = [], 0
    for num_blocks in (600, 13):
        plan = gpu_plan(
            folder, ordered=True, graphs=(), token_graphs=(), max_model_len=1024,
            num_blocks=num_blocks, max_step_tokens=32,
        )  # fmt: skip
        with driver(plan, folder) as run:
            answers.append([facts(a) for a in run.generate(prompts, NEW_TOKENS, WISHES[0])])
            preemptions = run.loop.stats().preemptions
    assert preemptions > 0 and answers[0] == answers[1]
