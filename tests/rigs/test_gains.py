"""The measure of float8 engines tells noise from faults, with the reference alone in both roles."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenspeed_kernels.spec import Device

from tests.rigs.drive import Answer, driver
from tests.rigs.gains import MOST_GAIN, MOST_STRAY, SCORED, TOP, Scale, Text, all_logits
from tests.rigs.plans import tiny_plan
from tests.rigs.rand import FAMILIES, build_rand, rand_prompts
from tests.rigs.rounded import Rounded
from tokenspeed.plan import Plan, WeightFormat
from tokenspeed.request import TokenLogprobs

LENGTHS = (1, 2, 15, 16, 17, 31, 33, 64)
PROMPTS = [rand_prompts(1, length, seed=2)[0] for length in LENGTHS]
NEW_TOKENS = 64
NOISE = 2.0**-8  # a unit of bfloat16's last place, at most


class Noisy(Rounded):
    """An engine with the noise of bfloat16 in every product. `louder` names a product whose rows
    come out doubled in texts of so many tokens."""

    louder = ("", 0)

    def product(self, x: torch.Tensor, name: str, many: torch.Tensor) -> torch.Tensor:
        noise = 1 + NOISE * (2 * torch.rand(len(x), len(self.matrices[name])) - 1)
        return super().product(x, name, many) * noise * (1 + (self.louder == (name, len(x))))


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "model"
    return build_rand(path, request.param, seed=11, head_dim=64, hidden_size=128, qk_scale=1.0)


def hopper_plan(folder: Path, kept: WeightFormat) -> Plan:
    return tiny_plan(
        folder, device=Device("cuda", "sm_90"), activations="bfloat16", kv_dtype="fp8",
        linear_format=kept, embedding_format=WeightFormat.BFLOAT16,
    )  # fmt: skip


def texts() -> list[Text]:
    return list(zip(PROMPTS, rand_prompts(len(PROMPTS), NEW_TOKENS, seed=5), strict=True))


def said(engine: Rounded) -> list[Answer]:
    """What the engine would answer, had it been made to say those texts."""
    torch.manual_seed(3)
    values, ids = all_logits(engine, texts()).log_softmax(-1).topk(TOP, -1)
    tops = [
        tuple(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)
    ]
    entries = [TokenLogprobs(top[0][0], top[0][1], top) for top in tops]
    return [
        Answer(tokens=answer, logprobs=entries[at * NEW_TOKENS : (at + 1) * NEW_TOKENS])
        for at, (_, answer) in enumerate(texts())
    ]


@pytest.fixture(scope="module")
def pair(folder: Path) -> tuple[Noisy, Scale]:
    plan = hopper_plan(folder, WeightFormat.FP8)
    batch = len(PROMPTS)
    engine = Noisy(plan, folder, batch, hopper=True)
    return engine, Scale(Rounded(plan, folder, batch, hopper=True), texts())


def test_noise_holds(pair: tuple[Noisy, Scale]) -> None:
    engine, scale = pair
    likeness = scale.weigh(said(engine))
    assert likeness.holds
    assert likeness.gain < MOST_GAIN / 2
    assert likeness.stray < MOST_STRAY / 1.5


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_every_matrix_at_another_scale_shows(pair: tuple[Noisy, Scale], factor: float) -> None:
    engine, scale = pair
    for name in engine.multiplied:
        kept = engine.matrices[name]
        engine.matrices[name] = kept * factor
        gain = scale.weigh(said(engine)).gain
        engine.matrices[name] = kept
        assert gain > 4 * MOST_GAIN, name


@pytest.mark.parametrize("rows", [slice(64), slice(-64, None)])
def test_rows_at_half_their_scale_show(pair: tuple[Noisy, Scale], rows: slice) -> None:
    """Not of queries: little hangs on one head's, or a norm makes up for it. Nor of the head:
    the tokens of those rows are too seldom among the likeliest."""
    engine, scale = pair
    for name in engine.multiplied:
        if "." not in name or (name.endswith("qkv") and rows.start is None):
            continue
        kept = engine.matrices[name]
        engine.matrices[name] = kept.clone()
        engine.matrices[name][rows] /= 2
        likeness = scale.weigh(said(engine))
        engine.matrices[name] = kept
        assert likeness.gain > 4 * MOST_GAIN, name


def test_a_head_without_its_scales_shows(pair: tuple[Noisy, Scale]) -> None:
    """As if all rows had one scale, the mean of theirs."""
    engine, scale = pair
    (name,) = (name for name in engine.multiplied if "." not in name)
    kept = engine.matrices[name]
    largest = kept.abs().amax(1, keepdim=True)
    engine.matrices[name] = kept / largest * largest.mean()
    likeness = scale.weigh(said(engine))
    engine.matrices[name] = kept
    assert not likeness.holds


def test_rows_of_one_text_at_another_scale_show(pair: tuple[Noisy, Scale]) -> None:
    engine, scale = pair
    for name in engine.multiplied:
        engine.louder = (name, LENGTHS[4] + NEW_TOKENS - 1)
        likeness = scale.weigh(said(engine))
        engine.louder = ("", 0)
        assert likeness.stray == likeness.strays[4] > MOST_STRAY, name


def test_an_engine_with_float8_weights(folder: Path) -> None:
    """On the CPU, where rows keep all their bits."""
    plan = tiny_plan(folder, linear_format=WeightFormat.FP8, max_step_tokens=512, num_blocks=600)
    with driver(plan, folder) as run:
        answers = run.generate(PROMPTS, NEW_TOKENS, SCORED)
    reference = Rounded(hopper_plan(folder, WeightFormat.FP8), folder, len(PROMPTS), hopper=True)
    reference.rounds = False
    spoken = [(p, answer.tokens) for p, answer in zip(PROMPTS, answers, strict=True)]
    assert Scale(reference, spoken).weigh(answers).holds
