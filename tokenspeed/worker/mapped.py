"""Small copies by kernels that read and write pinned host memory themselves.

A copy engine costs several microseconds of idle device before and after each copy between two
graphs; a kernel in the same queue does not. Imported on a GPU only.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl
from tokenspeed_kernels.launch_triton import (
    cdiv,
    dependent_launch,
    next_power_of_2,
    wait_for_producer,
)

_BLOCK = 1024
# Beyond this a copy engine is faster.
_MOST_WORDS = 64 * _BLOCK


@triton.jit(do_not_specialize=["words"])
def _copy(SOURCE, OUT, words, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(SOURCE + place, mask=place < words)
    tl.store(OUT + place, values, mask=place < words)


def copy_words(source: torch.Tensor, out: torch.Tensor) -> None:
    """See `upload.Copy`."""
    words = source.numel()
    if words > _MOST_WORDS:
        out[:words].copy_(source, non_blocking=True)
    elif words:
        _copy[(cdiv(words, _BLOCK),)](source, out, words, BLOCK=_BLOCK, num_warps=4)


@triton.jit(do_not_specialize=["count", "rows", "turns"])
def _land(TOKENS, RING, TURN, count, rows, turns, BLOCK: tl.constexpr, PDL: tl.constexpr):
    place = tl.arange(0, BLOCK)
    wait_for_producer(PDL)
    turn = tl.load(TURN)
    tokens = tl.load(TOKENS + place, mask=place < count)
    tl.store(RING + turn * rows + place, tokens, mask=place < count)
    # Every thread has read the turn before one of them ends it.
    tl.debug_barrier()
    tl.store(TURN, (turn + 1) % turns)


class Landing:
    """Where graphs leave their tokens in host memory: by turns, counted on the device and on the
    host alike, so that a graph may run again while what it left is still being read.

    `rows` of the largest step; a turn comes round again after `turns` graphs.
    """

    def __init__(self, rows: int, turns: int, device: torch.device) -> None:
        self._ring = torch.empty((turns, rows), dtype=torch.int32, pin_memory=True)
        self._turn = torch.zeros(1, dtype=torch.int32, device=device)
        self._next = 0

    def land(self, tokens: torch.Tensor) -> None:
        """Within a graph: its `tokens` int32 [N] go to host memory."""
        turns, rows = self._ring.shape
        pdl = dependent_launch(tokens.device)
        _land[(1,)](
            tokens, self._ring, self._turn, len(tokens), rows, turns,
            BLOCK=next_power_of_2(rows), PDL=pdl, num_warps=1, launch_pdl=pdl,
        )  # fmt: skip

    def restart(self) -> None:
        """Once all graphs are captured, which took turns too."""
        self._turn.zero_()
        self._next = 0

    def landed(self) -> torch.Tensor:
        """For each graph that is launched, in their order: int32 [rows] that begins with its
        tokens once it is done."""
        turn, self._next = self._next, (self._next + 1) % len(self._ring)
        return self._ring[turn]
