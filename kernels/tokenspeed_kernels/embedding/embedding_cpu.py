"""Embedding from a q4_1 or q8_0 table on a CPU, to float32. The code is csrc/cpu/embedding.cc."""

from __future__ import annotations

import torch

from tokenspeed_kernels import _cpu
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight


class EmbeddingQuantised:
    """See `op.Embedding`. The table stays in GGUF layout; only rows that are asked for are read."""

    def __init__(self, weight: RawWeight, out_dtype: torch.dtype = torch.float32) -> None:
        if weight.format not in BLOCK_BYTES or out_dtype is not torch.float32:
            raise ValueError(f"takes q4_1 or q8_0 to float32, not {weight.format} to {out_dtype}")
        self._data = weight.data.contiguous()
        self._format = weight.format
        self._columns = weight.shape[1]

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        assert tokens.dtype is torch.int32 and tokens.is_contiguous()
        count = tokens.shape[0]
        out = torch.empty(count, self._columns)
        _cpu.embed(
            self._format,
            self._data.data_ptr(),
            self._columns,
            tokens.data_ptr(),
            count,
            out.data_ptr(),
        )
        return out
