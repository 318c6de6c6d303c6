"""What goes up arrives whole, and where a kernel may assume it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tokenspeed.worker.graphs import DecodeGraphs
from tokenspeed.worker.inputs import Inputs
from tokenspeed.worker.upload import Upload


def test_arrays_of_any_length_and_type_arrive() -> None:
    parts = {
        "odd": np.arange(5, dtype=np.int32),
        "long": np.array([-1, 2**40], dtype=np.int64),
        "none": np.empty(0, dtype=np.int64),
        "table": np.arange(12, dtype=np.float32).reshape(2, 6).T,
        "last": np.array([7], dtype=np.int32),
    }
    upload = Upload(0, 1, torch.device("cpu"))
    placed = upload.place(upload.pack(parts))
    for name, part in parts.items():
        assert torch.equal(placed[name], torch.from_numpy(part.copy()))
    offsets = [placed[name].storage_offset() * placed[name].element_size() for name in parts]
    assert all(offset % 16 == 0 for offset in offsets)


@pytest.mark.parametrize(
    ("rows", "tokens", "samples", "bucket"),
    [(1, 1, 1, 1), (3, 3, 3, 4), (8, 8, 8, 8), (9, 9, 9, None), (2, 3, 2, None), (2, 2, 1, None)],
)
def test_only_plain_decode_steps_take_a_graph(
    rows: int, tokens: int, samples: int, bucket: int | None
) -> None:
    step = SimpleNamespace(num_rows=rows, num_tokens=tokens, num_samples=samples)
    assert DecodeGraphs((8, 1, 4)).bucket(step) == bucket


SLOTS, WIDTH, BLOCK = 6, 5, 4


def decode_step() -> SimpleNamespace:
    """Three rows of one token; what the scheduler would say of them."""
    contexts = np.array([3, 4, 11], dtype=np.int32)
    return SimpleNamespace(
        context_lens=contexts,
        query_lens=np.ones(3, dtype=np.int32),
        slots=np.array([5, 0, 2], dtype=np.int32),
        samples=np.ones(3, dtype=np.uint8),
        tokens=np.array([-1, 40, -1], dtype=np.int32),
        num_rows=3,
        num_decode_rows=3,
        num_tokens=3,
        num_samples=3,
        dirty=np.array([[0, 0, 5], [2, 0, 5], [5, 0, 5]], dtype=np.int32),
    )


def test_padding_changes_no_row_and_writes_to_the_sink() -> None:
    device = torch.device("cpu")
    tables = np.arange(1, SLOTS * WIDTH + 1, dtype=np.int32).reshape(SLOTS, WIDTH)
    inputs = Inputs(tables, BLOCK, device, fixed_shapes=True)
    upload = Upload(0, 1, device)
    every = torch.arange(SLOTS)
    inputs.remember(every, (100 + every).int())

    def placed(bucket: int | None):  # type: ignore[no-untyped-def]
        host = inputs.prepare(decode_step(), bucket)
        parts = upload.place(upload.pack(host.parts))
        inputs.change(parts)
        return inputs.expand(parts, host.width, None)

    exact, padded = placed(None), placed(8)
    assert padded.tokens[:3].tolist() == [105, 40, 102]
    assert padded.attention.cu_query_lens.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert padded.attention.slots[3:].tolist() == [0] * 5
    assert not padded.attention.block_tables[3:].any()
    assert padded.sample_slots[3:].tolist() == [SLOTS] * 5
    for name in ("positions", "slots", "block_tables", "context_lens"):
        ours, theirs = getattr(padded.attention, name), getattr(exact.attention, name)
        assert torch.equal(ours[:3], theirs[:3]), name
    assert torch.equal(padded.tokens[:3], exact.tokens)
    assert torch.equal(padded.sample_positions[:3], exact.sample_positions)
    last = tables[2, 11 // BLOCK] * BLOCK + 11 % BLOCK
    assert int(exact.attention.slots[2]) == last
