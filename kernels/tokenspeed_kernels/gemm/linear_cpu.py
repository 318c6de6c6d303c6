"""Linear over q4_1 and q8_0 weights on a CPU, activations rounded to 16 bits inside.

Per block of 32, as csrc/cpu/linear.h describes. The weight is repacked when bound and the raw
data is not kept.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from tokenspeed_kernels import _cpu
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight


class _LinearCpu:
    """See `op.Linear`; float32 in and out."""

    isa: ClassVar[int]

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        if weight.format not in BLOCK_BYTES:
            raise ValueError(f"{type(self).__name__} takes q4_1 or q8_0, not {weight.format}")
        data = weight.data.contiguous()
        wide_bias = None if bias is None else bias.float().contiguous()
        self._rows, self._columns = weight.shape
        self._packed = _cpu.PackedWeight(
            weight.format,
            data.data_ptr(),
            self._rows,
            self._columns,
            0 if wide_bias is None else wide_bias.data_ptr(),
        )
        self._linear = self._packed.linear

    @property
    def weight_bytes(self) -> int:
        """Bytes of the repacked weight."""
        return self._packed.bytes

    def __call__(self, x: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
        rows, columns = x.shape
        assert columns == self._columns and x.dtype is torch.float32 and x.is_contiguous()
        assert out_dtype is None or out_dtype is torch.float32
        out = torch.empty(rows, self._rows)
        self._linear(self.isa, x.data_ptr(), out.data_ptr(), rows)
        return out


class LinearAvx512Vnni(_LinearCpu):
    isa = _cpu.AVX512_VNNI


class LinearAvx2(_LinearCpu):
    isa = _cpu.AVX2


class LinearPortable(_LinearCpu):
    isa = _cpu.PORTABLE
