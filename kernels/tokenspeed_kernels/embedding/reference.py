"""Embedding in torch: gathers the rows first, then dequantises those alone."""

from __future__ import annotations

import torch

from tokenspeed_kernels.dequantise import dequantise_rows
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight


class EmbeddingReference:
    """See `op.Embedding`."""

    def __init__(self, weight: RawWeight, out_dtype: torch.dtype = torch.float32) -> None:
        self._weight = weight
        self._out_dtype = out_dtype

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self._weight.data.index_select(0, tokens)
        if self._weight.format in BLOCK_BYTES:
            rows = dequantise_rows(self._weight.format, rows)
        return rows.to(self._out_dtype)
