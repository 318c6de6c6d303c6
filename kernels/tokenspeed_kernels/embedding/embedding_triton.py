"""Embedding in Triton: a gather of rows, in 16-byte pieces."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch
from tokenspeed_kernels.weight import RawWeight

_BLOCK = 2048


@triton.jit
def _gather(TOKENS, TABLE, OUT, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    after_producer(PDL)
    token = tl.load(TOKENS + row).to(tl.int64)
    values = tl.load(TABLE + token * width + column, mask=inside, other=0.0)
    tl.store(OUT + row * width + column, values.to(OUT.dtype.element_ty), mask=inside)


class EmbeddingTriton:
    """See `op.Embedding`. Float tables."""

    def __init__(self, weight: RawWeight, out_dtype: torch.dtype = torch.float32) -> None:
        assert weight.data.is_contiguous()
        self._table = weight.data
        self._out_dtype = out_dtype

    def __call__(self, tokens: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        rows, width = tokens.shape[0], self._table.shape[1]
        if out is None:
            out = torch.empty((rows, width), dtype=self._out_dtype, device=tokens.device)
        assert out.is_contiguous() and out.dtype is self._out_dtype
        if rows:
            pdl = dependent_launch(tokens.device)
            _gather[(rows, cdiv(width, _BLOCK))](
                tokens, self._table, out, width,
                BLOCK=_BLOCK, PDL=pdl, num_warps=8, launch_pdl=pdl,
            )  # fmt: skip
        return out
