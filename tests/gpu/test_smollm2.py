"""The shipped small model on a GPU in bfloat16 says what the CPU engine in float32 says."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.gpu.test_engine import GRAPHS, Reference, gpu_plan
from tests.rigs.drive import Answer, driver
from tokenspeed.errors import TryAgainError
from tokenspeed.plan import Plan
from tokenspeed.tokenizer import load_text_model

# The CPU's part may take minutes where all cores are busy.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

NEW_TOKENS = 16
# Natural logarithms, between the likeliest token and the one that was taken where texts part.
TIE = 0.25
QUESTIONS = (
    "What is the capital of France?", "Write a haiku about rain.", "def fibonacci(n):",
    "Why is the sky blue?", "Translate to Spanish: The library opens at nine.",
    "List five animals that live in the sea.", "What are 12 apples less 5?", "How is bread baked?",
)  # fmt: skip
BATCH = 64


@pytest.fixture
def model_dir(request: pytest.FixtureRequest) -> Path:
    """The folder with the model, which a machine without a network may lack: its file then has to
    be brought to `models/` of the weights store in the user's data folder."""
    try:
        found: Path = request.getfixturevalue("smollm2_dir")
    except TryAgainError as error:
        pytest.skip(str(error))
    return found


def test_tokens_equal_the_cpu(model_dir: Path) -> None:
    """Graphs on and off, overlap on and off, alone and 64 at once, each question in eight of them.
    Equal texts are scored once."""
    texts: dict[tuple[int, ...], list[int]] = {}
    for graphs, depth in itertools.product(((*GRAPHS, 64), ()), (0, 1)):
        plan = gpu_plan(
            model_dir, graphs=graphs, token_graphs=(64, 128) if graphs else (),
            in_flight_depth=depth, max_running=64, max_step_tokens=512, num_blocks=600,
        )  # fmt: skip
        prompts = _prompts(model_dir, plan)
        with driver(plan, model_dir) as run:
            for batch in (prompts[:1], prompts):
                answers = run.generate(batch, NEW_TOKENS)
                assert all(answer.tokens for answer in answers)
                texts |= {(*p, *a.tokens): p for p, a in zip(batch, answers, strict=True)}
    pairs = [(p, Answer(tokens=list(text[len(p) :]))) for text, p in texts.items()]
    gaps = Reference(model_dir, threads=8).gaps(*zip(*pairs, strict=True))
    assert len(gaps) >= len(QUESTIONS)
    assert max(gaps) < TIE


def _prompts(folder: Path, plan: Plan) -> list[list[int]]:
    text = load_text_model(folder, plan)
    asked = [
        np.frombuffer(text.encode_chat([{"role": "user", "content": said}], {}), "<i4").tolist()
        for said in QUESTIONS
    ]
    return asked * (BATCH // len(asked))
