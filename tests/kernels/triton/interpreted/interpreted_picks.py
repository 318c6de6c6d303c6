"""What a step picks by slot, in Triton and in torch."""

import pytest
import torch

from tokenspeed.worker.picks import Drawing, TorchPicks
from tokenspeed.worker.picks_triton import TritonPicks

SLOTS = 300
TORCH, TRITON = TorchPicks(), TritonPicks()


@pytest.mark.parametrize("rows", [0, 1, 17, 129])
@pytest.mark.parametrize(("begins", "width"), [((0,), 2500), ((0, 3, 1500), 1000), ((7,), 1)])
def test_tables(rows, begins, width):
    tables = torch.randint(0, 9999, (SLOTS, 2503), dtype=torch.int32)
    slots = torch.randint(0, SLOTS, (rows,), dtype=torch.int32)
    for found, wanted in zip(
        TRITON.tables(tables, begins, width, slots), TORCH.tables(tables, begins, width, slots),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("count", [0, 1, 128, 513])
def test_tokens(count):
    tokens = torch.randint(-1, 2, (count,), dtype=torch.int32)
    slots = torch.randint(0, SLOTS, (count,), dtype=torch.int32)
    last = torch.randint(0, 9999, (SLOTS,), dtype=torch.int32)
    assert torch.equal(TRITON.tokens(tokens, slots, last), TORCH.tokens(tokens, slots, last))


@pytest.mark.parametrize("count", [0, 1, 64, 130])
def test_drawing_and_writing(count):
    kept = Drawing(
        torch.rand(6, SLOTS), torch.randint(0, 9999, (SLOTS,), dtype=torch.int32),
        torch.randint(-(2**63), 2**63 - 1, (SLOTS,)),
    )  # fmt: skip
    slots = torch.randperm(SLOTS)[:count]
    found, wanted = TRITON.drawing(kept, 3, slots), TORCH.drawing(kept, 3, slots)
    assert torch.equal(found.floats, wanted.floats)
    assert torch.equal(found.top_k, wanted.top_k)
    assert torch.equal(found.seeds, wanted.seeds)
    tokens = torch.randint(0, 9999, (count,), dtype=torch.int32)
    lasts = torch.zeros(2, SLOTS, dtype=torch.int32)
    TRITON.write(lasts[0], slots, tokens)
    TORCH.write(lasts[1], slots, tokens)
    assert torch.equal(lasts[0], lasts[1])
