"""RMSNorm on a CPU, float32. The code is csrc/cpu/vector/norm.inc."""

from __future__ import annotations

from functools import partial

import torch

from tokenspeed_kernels import _cpu


def _rms_norm(isa: int, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    rows, dim = x.shape
    assert x.dtype is torch.float32 and x.is_contiguous() and weight.dtype is torch.float32
    out = torch.empty_like(x)
    _cpu.rms_norm(isa, x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, dim, eps)
    return out


def _add_rms_norm(
    isa: int, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    rows, dim = x.shape
    assert x.dtype is torch.float32 and x.is_contiguous() and weight.dtype is torch.float32
    assert residual.dtype is torch.float32 and residual.is_contiguous()
    out = torch.empty_like(x)
    _cpu.add_rms_norm(
        isa,
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        rows,
        dim,
        eps,
    )
    return out


rms_norm_avx512 = partial(_rms_norm, _cpu.AVX512)
rms_norm_avx2 = partial(_rms_norm, _cpu.AVX2)
rms_norm_portable = partial(_rms_norm, _cpu.PORTABLE)
add_rms_norm_avx512 = partial(_add_rms_norm, _cpu.AVX512)
add_rms_norm_avx2 = partial(_add_rms_norm, _cpu.AVX2)
add_rms_norm_portable = partial(_add_rms_norm, _cpu.PORTABLE)
