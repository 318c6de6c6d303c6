"""Latent attention of rows of many tokens on sm_90: attention over keys and values by warpgroups
with roles, what makes them in Triton."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tokenspeed_kernels.latent import pieces
from tokenspeed_kernels.latent.attend_expanded_hopper import _attend_expanded
from tokenspeed_kernels.latent.latent_extend_triton import (
    ExtendTiling,
    LatentExtendTriton,
    Meeting,
)
from tokenspeed_kernels.latent.latent_extend_triton import latent_extend as extend_triton
from tokenspeed_kernels.latent.op import LatentShape, Lengths
from tokenspeed_kernels.maps_hopper import tensor_map

# Four warps for each half of the 128 queries; one more asks for the tiles.
HOPPER = ExtendTiling(queries=128, keys=128, warps=4, stages=2)
# Dimensions that the copy engine brings at once.
_BOX = 64
# Queries of a warpgroup.
ROWS = 64
# A lane's, of the first two warpgroups and of the third.
_REGISTERS = (240, 24)


class AttendHopper:
    """See `latent_extend_triton.Attend`; q tiles of 128 queries."""

    def __init__(
        self,
        shape: LatentShape,
        tiling: ExtendTiling,
        num_rows: int,
        num_tokens: int,
        chunk_tokens: int,
        multiprocessors: int,
        device: torch.device,
    ) -> None:
        assert tiling.queries == tiling.keys == tiling.tokens == pieces.TILE
        self._heads, self._device = shape.num_heads, device
        self._chunk_tiles, self._programs = chunk_tokens // tiling.tokens, multiprocessors
        rows = pieces.rows_of_sums(num_tokens, shape.num_heads, multiprocessors)
        self.state = torch.empty(rows, shape.value_dim, dtype=torch.float32, device=device)
        self.sums = torch.empty(rows, 2, dtype=torch.float32, device=device)
        # Two of each q tile under a head.
        counts = 2 * shape.num_heads * (num_tokens // pieces.TILE + num_rows)
        self._counts = torch.zeros(counts, dtype=torch.int32, device=device)
        self._words: list[torch.Tensor] = []
        # Of keys and values and of the rotated part, which lie in the same place in every layer.
        self._maps: list[TensorDescriptor] = []

    def schedule(
        self,
        cu_query_lens: torch.Tensor,
        context_lens: torch.Tensor,
        first_row: int,
        lengths: Lengths,
    ) -> None:
        """See `Attend`."""
        made = pieces.schedule(
            *lengths, self._heads, self._chunk_tiles, self._programs, len(self.state)
        )
        self._words = _brought([*itertools.chain(*made.chunks)], self._device)
        assert made.counts <= len(self._counts)

    def __call__(self, meeting: Meeting) -> None:
        """See `Attend`."""
        shape, tiling = meeting.shape, meeting.tiling
        query, rotated = meeting.query, meeting.rotated
        if not self._maps:
            made = (meeting.made.flatten(1), meeting.turned)
            self._maps = [tensor_map(one, tiling.keys, _BOX) for one in made]
        consumer, producer = _REGISTERS
        chunk = meeting.first_tile // self._chunk_tiles
        table, parts = self._words[2 * chunk : 2 * chunk + 2]
        _attend_expanded[(len(table) - 1,)](
            tensor_map(_flat(query), ROWS, _BOX), tensor_map(_flat(rotated), ROWS, _BOX),
            *self._maps, meeting.cu_query_lens, table, parts, meeting.out, self.state, self.sums,
            self._counts, query.stride(1), rotated.stride(1), meeting.plan.first_row, meeting.scale,
            H=shape.num_heads, NOPE=shape.nope_dim, E=shape.rope_dim,
            VALUE=shape.value_dim, N=tiling.keys, STAGES=tiling.stages, TURNS=False,
            PRODUCER_REGISTERS=producer, CONSUMER_REGISTERS=consumer, num_warps=tiling.warps,
        )  # fmt: skip

    def finish(self, meeting: Meeting) -> None:
        """Whoever leaves the last sums of a q tile has joined them."""


def _flat(queries: torch.Tensor) -> torch.Tensor:
    """[T, H, D] as [T, ..], with what lies between heads."""
    tokens, heads, width = queries.shape
    across = (heads - 1) * queries.stride(1) + width
    return queries.as_strided((tokens, across), (queries.stride(0), 1))


def _brought(lists: Sequence[Sequence[int]], device: torch.device) -> list[torch.Tensor]:
    """int32 tensors of them, in one copy that waits for nothing. Each begins at 16 bytes, as
    kernels are compiled for."""
    words: list[int] = []
    begins = []
    for one in lists:
        begins.append(len(words))
        words += one
        words += [0] * (-len(words) % 4)
    there = torch.tensor(words, dtype=torch.int32).pin_memory().to(device, non_blocking=True)
    return [there[at : at + len(one)] for at, one in zip(begins, lists, strict=True)]


# See `op.BoundLatentExtend`.
LatentExtendHopper = functools.partial(
    LatentExtendTriton, tiling=HOPPER, attend=AttendHopper, by_torch=True
)

# See `op.LatentExtend`.
latent_extend = functools.partial(extend_triton, bind=LatentExtendHopper)
