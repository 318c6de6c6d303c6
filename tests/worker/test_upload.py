"""What goes up arrives whole, and where a kernel may assume it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenspeed_kernels.latent.op import Lengths

from tokenspeed.layers.attention import Expanded
from tokenspeed.plan import ExpansionPlan
from tokenspeed.worker.graphs import Graphs
from tokenspeed.worker.inputs import Inputs, Shape, padded_tokens
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


DECODES = {size: Shape(size, 0, size, size) for size in (1, 4, 8)}
OTHERS = {count: Shape(8, 8, count, 8) for count in (16, 64)}


@pytest.mark.parametrize(
    ("rows", "tokens", "samples", "shape"),
    [
        (1, 1, 1, DECODES[1]),
        (3, 3, 3, DECODES[4]),
        (8, 8, 8, DECODES[8]),
        (2, 2, 1, OTHERS[16]),  # the last token of a chunk
        (8, 16, 8, OTHERS[16]),
        (2, 17, 2, OTHERS[64]),
        (1, 65, 1, None),
    ],
)
def test_a_step_takes_the_smallest_graph_that_holds_it(
    rows: int, tokens: int, samples: int, shape: Shape | None
) -> None:
    step = SimpleNamespace(num_rows=rows, num_tokens=tokens, num_samples=samples)
    assert Graphs((8, 1, 4), (64, 16), 8).shape(step) == shape


def test_decodes_beyond_the_largest_batch_take_the_graph_of_other_steps() -> None:
    step = SimpleNamespace(num_rows=8, num_tokens=8, num_samples=8)
    assert Graphs((1, 4), (16,), 8).shape(step) == OTHERS[16]
    assert Graphs((1, 4), (), 8).shape(step) is None


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
        copies=np.zeros((0, 3), dtype=np.int32),
    )


def test_padding_changes_no_row_and_writes_to_the_sink() -> None:
    device = torch.device("cpu")
    tables = np.arange(1, SLOTS * WIDTH + 1, dtype=np.int32).reshape(SLOTS, WIDTH)
    inputs = Inputs(tables, [WIDTH], BLOCK, device, fixed_shapes=True)
    upload = Upload(0, 1, device)
    every = torch.arange(SLOTS)
    inputs.remember(every, (100 + every).int())

    def placed(shape: Shape | None):  # type: ignore[no-untyped-def]
        host = inputs.prepare(decode_step(), shape)
        parts = upload.place(upload.pack(host.parts))
        inputs.change(parts)
        return inputs.gather(parts, host.width, None)

    exact, padded, among = placed(None), placed(DECODES[8]), placed(Shape(4, 4, 16, 4))
    assert padded.attention.cu_query_lens.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert padded.sample_tokens is None
    assert padded.sample_slots[3:].tolist() == [SLOTS] * 5
    assert among.attention.cu_query_lens.tolist() == [0, 1, 2, 3, 3, 3, 3, 3, 3]
    assert among.sample_tokens is not None and among.sample_tokens.tolist() == [0, 1, 2, 0]
    assert among.sample_slots.tolist() == [5, 0, 2, SLOTS]
    for one in (padded, among):
        assert one.tokens[:3].tolist() == [105, 40, 102]
        assert not one.attention.slots[0][3:].any()
        assert not one.attention.block_tables[0][3:].any()
        for name in ("positions", "context_lens"):
            ours, theirs = getattr(one.attention, name), getattr(exact.attention, name)
            assert torch.equal(ours[:3], theirs[:3]), name
        for name in ("slots", "block_tables"):
            (ours,), (theirs,) = getattr(one.attention, name), getattr(exact.attention, name)
            assert torch.equal(ours[:3], theirs[:3]), name
        assert torch.equal(one.tokens[:3], exact.tokens[:3])
        assert torch.equal(one.sample_positions[:3], exact.sample_positions[:3])
    last = tables[2, 11 // BLOCK] * BLOCK + 11 % BLOCK
    assert int(exact.attention.slots[0][2]) == last


@pytest.mark.parametrize("entries", [66, 67])
def test_more_table_entries_than_a_graph_takes_are_written_before_it(entries: int) -> None:
    tables = np.arange(1, SLOTS * 80 + 1, dtype=np.int32).reshape(SLOTS, 80)
    inputs = Inputs(tables, [80], BLOCK, torch.device("cpu"), fixed_shapes=True)
    upload = Upload(0, 1, torch.device("cpu"))
    step = SimpleNamespace(
        context_lens=np.array([9], dtype=np.int32), query_lens=np.ones(1, dtype=np.int32),
        slots=np.array([5], dtype=np.int32), samples=np.ones(1, dtype=np.uint8),
        tokens=np.array([7], dtype=np.int32),
        num_rows=1, num_decode_rows=1, num_tokens=1, num_samples=1,
        dirty=np.array([[5, 0, entries]], dtype=np.int32),
        copies=np.zeros((0, 3), dtype=np.int32),
    )  # fmt: skip
    host = inputs.prepare(step, DECODES[1])
    parts = upload.place(upload.pack(host.parts))
    assert ("changed_places" in parts) == (entries > 66)
    inputs.change(parts)
    found = inputs.gather(parts, host.width, None)
    wanted = np.where(np.arange(80) < entries, tables[5], 0)
    assert np.array_equal(found.attention.block_tables[0].numpy(), wanted[None])
    blank = upload.pack(inputs.blank(DECODES[1]).parts)
    layout = upload.pack(host.parts).layout
    assert blank.layout == {name: layout[name] for name in blank.layout}


def test_rows_with_prompts_follow_those_that_decode() -> None:
    """Two that decode, then the end of one prompt and a chunk of another."""
    device = torch.device("cpu")
    tables = np.arange(1, SLOTS * WIDTH + 1, dtype=np.int32).reshape(SLOTS, WIDTH)
    inputs = Inputs(tables, [WIDTH], BLOCK, device, fixed_shapes=True)
    upload = Upload(0, 1, device)
    step = SimpleNamespace(
        context_lens=np.array([3, 9, 4, 0], dtype=np.int32),
        query_lens=np.array([1, 1, 3, 2], dtype=np.int32),
        slots=np.array([5, 0, 2, 1], dtype=np.int32),
        samples=np.array([1, 1, 1, 0], dtype=np.uint8),
        tokens=np.array([-1, -1, 30, 31, 32, 40, 41], dtype=np.int32),
        num_rows=4, num_decode_rows=2, num_tokens=7, num_samples=3,
        dirty=np.array([[0, 0, 5], [1, 0, 5], [2, 0, 5], [5, 0, 5]], dtype=np.int32),
        copies=np.zeros((0, 3), dtype=np.int32),
    )  # fmt: skip
    host = inputs.prepare(step, Shape(4, 4, 16, 4))
    parts = upload.place(upload.pack(host.parts))
    inputs.change(parts)
    found = inputs.gather(parts, host.width, None)
    assert found.attention.cu_query_lens.tolist() == [0, 1, 2, 2, 2, 5, 7, 7, 7]
    assert found.attention.context_lens.tolist() == [3, 9, 0, 0, 4, 0, 0, 0]
    assert found.attention.positions.tolist() == [3, 9, 4, 5, 6, 0, 1] + [0] * 9
    assert found.sample_tokens is not None and found.sample_tokens.tolist() == [0, 1, 4, 0]
    assert found.sample_slots.tolist() == [5, 0, 2, SLOTS]
    assert found.sample_positions[:3].tolist() == [4, 10, 7]
    blank = upload.pack(inputs.blank(Shape(4, 4, 16, 4)).parts)
    layout = upload.pack(host.parts).layout
    assert blank.layout == {name: layout[name] for name in blank.layout}


def test_a_step_without_a_graph_takes_whole_tiles_of_tokens() -> None:
    tables = np.ones((SLOTS, WIDTH), dtype=np.int32)
    fixed = Inputs(tables, [WIDTH], BLOCK, torch.device("cpu"), fixed_shapes=True)
    host = fixed.prepare(decode_step())
    assert host.shape == Shape(SLOTS, SLOTS, padded_tokens(3), 3)
    assert len(host.parts["tokens"]) == padded_tokens(3) == 64
    assert padded_tokens(64) == 64 < padded_tokens(65)
    exact = Inputs(tables, [WIDTH], BLOCK, torch.device("cpu")).prepare(decode_step())
    assert exact.shape == Shape(3, 0, 3, 3)


def prompt_step(new: list[int], cached: list[int]) -> SimpleNamespace:
    """A row that decodes, and others of so many new and cached tokens."""
    query_lens = np.array([1, *new], dtype=np.int32)
    return SimpleNamespace(
        context_lens=np.array([9, *cached], dtype=np.int32),
        query_lens=query_lens,
        slots=np.arange(len(query_lens), dtype=np.int32),
        samples=np.ones(len(query_lens), dtype=np.uint8),
        tokens=np.ones(query_lens.sum(), dtype=np.int32),
        num_rows=len(query_lens),
        num_decode_rows=1,
        num_tokens=int(query_lens.sum()),
        num_samples=len(query_lens),
        dirty=np.zeros((0, 3), dtype=np.int32),
        copies=np.zeros((0, 3), dtype=np.int32),
    )


@pytest.mark.parametrize(
    ("new", "cached", "launch", "expands"),
    [
        ([500], [50_000], 0, True),
        ([171], [50_000], 0, True),  # 171 x 50,086 pairs over 50,171 tokens
        ([171], [50_000], 1_000, False),
        ([150], [50_000], 0, False),
        ([500, 20], [50_000, 50_000], 0, True),  # 260 a token, although one row alone would not
        ([300, 20], [50_000, 50_000], 0, False),
        ([400], [0], 0, True),
        ([400], [0], 100, False),
        ([300], [0], 0, False),
        ([], [], 0, False),
    ],
)
def test_steps_expand_where_enough_queries_meet_each_token(
    new: list[int], cached: list[int], launch: int, expands: bool
) -> None:
    tables = np.ones((SLOTS, 20_000), dtype=np.int32)
    given = (tables, [20_000], BLOCK, torch.device("cpu"))
    rule = ExpansionPlan(least_reuse=170, launch_tokens=launch, chunk_tokens=1024)
    inputs = Inputs(*given, fixed_shapes=True, expansion=rule)
    step = prompt_step(new, cached)
    assert inputs.expands(step) is expands
    assert not Inputs(*given).expands(step)
    if not expands:
        assert inputs.prepare(step).expanded is None
        return
    host = inputs.prepare(step, None, True)
    # Padded rows lie between those that decode and these.
    assert host.expanded == Expanded(SLOTS, 1, Lengths(new, cached))
    assert host.shape.decode == SLOTS
    assert host.parts["cu_query_lens"][SLOTS] == 1
