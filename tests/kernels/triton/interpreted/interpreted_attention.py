from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tokenspeed_kernels.attention import paged_attention_triton
from tokenspeed_kernels.attention.paged_attention_triton import DECODE_FEW, DECODE_WINDOW
from tokenspeed_kernels.attention.schedule_triton import Layout, write_schedule

from tests.kernels.triton import cases

SMALL = replace(DECODE_FEW, keys=32)
LARGE = replace(cases.EXTEND, rows=32, keys=32, tensor_maps=False)
MAPPED = replace(LARGE, keys=16, tensor_maps=True)


@pytest.mark.parametrize(("lanes", "cost"), [(False, 3), (True, 0), (True, 2)])
@pytest.mark.parametrize("contexts", [[0], [5, 99, 176], [200, 0, 0, 31]])
def test_decode(contexts, lanes, cost):
    decode = replace(SMALL, lanes=lanes, cost=cost)
    cases.check_attention("cpu", [1] * len(contexts), contexts, len(contexts), decode=decode)


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("contexts", [[176], [0, 99, 176], [200, 0, 31]])
def test_more_programs_than_rows(monkeypatch, contexts, lanes):
    """Their parts are joined a tile each, where boundaries would be more."""
    monkeypatch.setattr(paged_attention_triton, "num_multiprocessors", lambda device: 16)
    decode = replace(SMALL, lanes=lanes, cost=1)
    cases.check_attention("cpu", [1] * len(contexts), contexts, len(contexts), decode=decode)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (6, 2), (7, 1), (9, 3), (17, 1)])
def test_groups_of_any_size(heads, kv_heads):
    cases.check_attention(
        "cpu", [1, 5], [70, 30], 1, heads=heads, kv_heads=kv_heads, decode=SMALL, extend=LARGE
    )


@pytest.mark.parametrize("extend", [LARGE, MAPPED, replace(LARGE, split_loop=False)])
def test_extend(extend):
    cases.check_attention("cpu", [40, 1, 7], [33, 0, 100], 0, extend=extend)


def test_mixed_with_empty_rows():
    cases.check_attention(
        "cpu", [1, 0, 1, 20, 0, 3], [50, 70, 0, 16, 9, 64], 3, decode=SMALL, extend=LARGE
    )


@pytest.mark.parametrize("lens", [[0, 0, 0, 9], [1, 1, 1, 0], [0, 0, 0, 0]])
def test_no_row_of_a_kind(lens):
    cases.check_attention("cpu", lens, [50, 70, 3, 16], 3, decode=SMALL, extend=LARGE)


@pytest.mark.parametrize("block", [16, 64])
def test_float8_cache(block):
    cases.check_attention(
        "cpu", [1, 9], [90, 40], 1, block=block, kv_dtype=cases.FP8, decode=SMALL, extend=LARGE
    )


def test_one_call():
    cases.check_attention_in_one_call("cpu")


@pytest.mark.parametrize("window", [1, 8, 40, 500])
@pytest.mark.parametrize("extend", [LARGE, MAPPED])
def test_windows_and_sinks(window, extend):
    """Lengths around the window and around tiles; a tile of keys spans blocks, or a block tiles."""
    cases.check_attention(
        "cpu", [1, 1, 1, 33, 3], [0, 39, 150, 41, 90], 3, decode=SMALL, extend=extend,
        window=window, sinks=True,
    )  # fmt: skip


@pytest.mark.parametrize(("window", "sinks"), [(0, True), (20, False)])
def test_one_without_the_other(window, sinks):
    decode = replace(SMALL, joins=True, cost=1)
    cases.check_attention(
        "cpu", [1, 0, 1, 20], [176, 5, 3, 60], 3, decode=decode, extend=LARGE,
        block=64, heads=6, window=window, sinks=sinks,
    )  # fmt: skip


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
@pytest.mark.parametrize("window", [1, 8, 40, 128])
@pytest.mark.parametrize("sinks", [False, True])
def test_a_window_in_one_tile(window, sinks, kv_dtype):
    """Lengths around the window; blocks smaller and larger than it; an empty row between others."""
    lens, contexts = [1, 0, 1, 1, 1, 7], [0, 60, 39, 150, 128, 50]
    for block in (16, 64):
        cases.check_attention(
            "cpu", lens, contexts, 5, decode=DECODE_WINDOW, extend=LARGE, heads=6, block=block,
            window=window, sinks=sinks, kv_dtype=kv_dtype,
        )  # fmt: skip
    cases.check_attention("cpu", [0, 0], [9, 0], 2, decode=DECODE_WINDOW, window=window)


def test_windows_of_a_float8_cache():
    cases.check_attention(
        "cpu", [1, 9], [90, 40], 1, kv_dtype=cases.FP8, decode=SMALL, extend=LARGE,
        window=24, sinks=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("query_lens", "contexts", "drawn"),
    [
        ([8] * 12, [40] * 12, True),
        ([8] * 12, [40] * 11 + [4000], False),  # one of them has most to do
        ([8] * 2, [40] * 2, False),  # too few to share out whole
        ([0, 0], [40, 0], False),
    ],
)
def test_q_tiles_are_drawn_whole_where_they_are_many_and_none_is_long(query_lens, contexts, drawn):
    layout = Layout(4, 16, 8, 16, 2, 1, whole_tiles=True)
    schedule = torch.full((layout.size,), 2**30, dtype=torch.int32)
    cu = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    rows = torch.tensor(contexts, dtype=torch.int32)
    write_schedule(layout, cu, rows, 0, len(query_lens), schedule)
    assert (int(schedule[1]) < 0) is drawn
    assert schedule[0] == sum(length > 0 for length in query_lens)


@pytest.mark.parametrize(
    ("contexts", "most"),
    [
        ([999], 8),  # kv tiles of the program with most of them; 63 are shared by 8
        ([63], 1),
        ([255] * 3, 8),  # 48 of them, six a program, are not even in halves
        ([500, 15, 0, 30], 7),
        ([15] * 8, 1),
        ([1000] * 5, None),  # three programs would be idle
        ([6399, 3327], None),  # 80 units instead of 76
        ([15] * 9, None),
        ([], 0),
    ],
)
def test_q_tiles_have_programs_of_their_own_where_that_costs_little(contexts, most):
    programs, keys = 8, 16
    layout = Layout(programs, 9, 1, keys, 1, 1, own_programs=True)
    schedule = torch.full((layout.size,), 2**30, dtype=torch.int32)
    cu = torch.arange(len(contexts) + 1, dtype=torch.int32)
    write_schedule(
        layout, cu, torch.tensor(contexts, dtype=torch.int32), 0, len(contexts), schedule
    )
    tiles, working = (int(count) for count in schedule[:2])
    assert tiles == len(contexts)
    before = schedule[3 + programs :][: tiles + 1].tolist()
    kv_tiles = [context // keys + 1 for context in contexts]
    spare = [before[i + 1] - before[i] - count for i, count in enumerate(kv_tiles)]
    if most is None:
        assert spare == [1] * tiles
        return
    walked = [0] * tiles
    largest = 0
    for program in range(working):
        begin, end = (before[-1] * edge // working for edge in (program, program + 1))
        tile = int(schedule[2 + program])
        assert before[tile] <= begin < end <= before[tile + 1]
        walk = end - max(begin, before[tile] + spare[tile])
        assert walk > 0
        walked[tile] += walk
        largest = max(largest, walk)
    assert walked == kv_tiles
    assert largest == most
