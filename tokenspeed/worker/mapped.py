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
        _copy[(triton.cdiv(words, _BLOCK),)](source, out, words, BLOCK=_BLOCK, num_warps=4)
