"""`Picks` in Triton. Imported on a GPU only.

The kernels do nothing before what is ahead of them is done; that they are there by then saves a
step some launches that nothing hides.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from tokenspeed_kernels.launch_triton import cdiv, dependent_launch, wait_for_producer

from tokenspeed.worker.picks import Drawing

_BLOCK = 1024
_ROWS = 128


@triton.jit(do_not_specialize=["width", "apart"])
def _pick_tables(
    TABLES, SLOTS, OUT, stride, width, apart, BEGINS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """OUT: a group [rows, width], then another `apart` from it."""
    wait_for_producer(PDL)
    row, group = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin = 0
    for other in tl.static_range(len(BEGINS)):
        begin = tl.where(group == other, BEGINS[other], begin)
    slot = tl.load(SLOTS + row).to(tl.int64)
    inside = column < width
    values = tl.load(TABLES + slot * stride + begin + column, mask=inside)
    place = group.to(tl.int64) * apart + row.to(tl.int64) * width
    tl.store(OUT + place + column, values, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _pick_tokens(TOKENS, SLOTS, LAST, OUT, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_producer(PDL)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    token = tl.load(TOKENS + place, mask=inside, other=0)
    slot = tl.load(SLOTS + place, mask=inside, other=0)
    known = tl.load(LAST + slot, mask=inside & (token < 0), other=0)
    tl.store(OUT + place, tl.where(token < 0, known, token), mask=inside)


@triton.jit(do_not_specialize=["count", "slots"])
def _pick_drawing(
    FLOATS, TOP_K, SEEDS, SLOTS, OUT_FLOATS, OUT_TOP_K, OUT_SEEDS, count, slots,
    FIELDS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait_for_producer(PDL)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    slot = tl.load(SLOTS + place, mask=inside, other=0)
    for field in tl.static_range(FIELDS):
        value = tl.load(FLOATS + field * slots + slot, mask=inside)
        tl.store(OUT_FLOATS + field * count + place, value, mask=inside)
    tl.store(OUT_TOP_K + place, tl.load(TOP_K + slot, mask=inside), mask=inside)
    tl.store(OUT_SEEDS + place, tl.load(SEEDS + slot, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _write(KEPT, PLACES, VALUES, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    wait_for_producer(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    place = tl.load(PLACES + row, mask=inside, other=0)
    tl.store(KEPT + place, tl.load(VALUES + row, mask=inside), mask=inside)


class TritonPicks:
    """See `Picks`."""

    def tables(
        self, tables: torch.Tensor, begins: Sequence[int], width: int, slots: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rows = len(slots)
        # Each begins at a multiple of 16 bytes, as memory of its own does.
        apart = cdiv(rows * width, 4) * 4
        out = tables.new_empty((len(begins), apart))
        if rows:
            pdl = dependent_launch(out.device)
            _pick_tables[(rows, cdiv(width, _BLOCK), len(begins))](
                tables, slots, out, tables.stride(0), width, apart,
                BEGINS=tuple(begins), BLOCK=_BLOCK, PDL=pdl, num_warps=4, launch_pdl=pdl,
            )  # fmt: skip
        return tuple(one[: rows * width].view(rows, width) for one in out)

    def tokens(self, tokens: torch.Tensor, slots: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        out, count = torch.empty_like(tokens), len(tokens)
        if count:
            pdl = dependent_launch(out.device)
            _pick_tokens[(cdiv(count, _ROWS),)](
                tokens, slots, last, out, count, BLOCK=_ROWS, PDL=pdl, num_warps=1, launch_pdl=pdl
            )
        return out

    def drawing(self, kept: Drawing, count: int, slots: torch.Tensor) -> Drawing:
        rows = len(slots)
        picked = Drawing(
            kept.floats.new_empty((count, rows)), kept.top_k.new_empty(rows),
            kept.seeds.new_empty(rows),
        )  # fmt: skip
        if rows:
            pdl = dependent_launch(slots.device)
            _pick_drawing[(cdiv(rows, _ROWS),)](
                kept.floats, kept.top_k, kept.seeds, slots,
                picked.floats, picked.top_k, picked.seeds, rows, kept.floats.shape[1],
                FIELDS=count, BLOCK=_ROWS, PDL=pdl, num_warps=1, launch_pdl=pdl,
            )  # fmt: skip
        return picked

    def write(self, kept: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
        if count := len(places):
            pdl = dependent_launch(kept.device)
            _write[(cdiv(count, _ROWS),)](
                kept, places, values, count, BLOCK=_ROWS, PDL=pdl, num_warps=1, launch_pdl=pdl
            )
