"""silu(gate) * up on a CPU, float32. The code is csrc/cpu/vector/activation.inc."""

from __future__ import annotations

from functools import partial

import torch

from tokenspeed_kernels import _cpu


def _silu_mul(isa: int, x: torch.Tensor) -> torch.Tensor:
    rows, width = x.shape
    assert x.dtype is torch.float32 and x.is_contiguous()
    inner = width // 2
    out = torch.empty(rows, inner)
    _cpu.silu_mul(isa, x.data_ptr(), out.data_ptr(), rows, inner)
    return out


silu_mul_avx512 = partial(_silu_mul, _cpu.AVX512)
silu_mul_avx2 = partial(_silu_mul, _cpu.AVX2)
silu_mul_portable = partial(_silu_mul, _cpu.PORTABLE)
