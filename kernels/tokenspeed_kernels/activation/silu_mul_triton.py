"""Gated activation in Triton, elementwise in 16-byte pieces."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.launch_triton import cdiv, dependent_launch, start_next, wait_for_producer

_BLOCK = 1024


@triton.jit
def _silu_mul(X, OUT, width, row_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    start_next(PDL)
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    wait_for_producer(PDL)
    gate = tl.load(X + row * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(X + row * row_stride + width + column, mask=inside, other=0.0)
    # Rounded between the two factors, as the reference does.
    silu = (gate / (1.0 + tl.exp(-gate))).to(OUT.dtype.element_ty)
    out = silu.to(tl.float32) * up.to(tl.float32)
    tl.store(OUT + row * width + column, out.to(OUT.dtype.element_ty), mask=inside)


def silu_mul(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """See `op.SiluMul`. Rows of `x` may be strided."""
    rows, width = x.shape[0], x.shape[1] // 2
    assert x.stride(1) == 1 and x.shape[1] % 2 == 0
    if out is None:
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    assert out.is_contiguous() and out.dtype is x.dtype
    pdl = dependent_launch(x.device)
    # The second axis of a grid ends at 65,535.
    for begin in range(0, rows, 65535):
        part = x[begin : begin + 65535]
        _silu_mul[(cdiv(width, _BLOCK), part.shape[0])](
            part, out[begin : begin + 65535], width, x.stride(0),
            BLOCK=_BLOCK, PDL=pdl, num_warps=4, launch_pdl=pdl,
        )  # fmt: skip
    return out
