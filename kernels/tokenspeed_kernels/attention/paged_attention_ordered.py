"""Paged attention in one order of sums, whatever the batch; see attend_ordered_triton."""

from __future__ import annotations

import functools
import math

import torch

from tokenspeed_kernels.attention.attend_ordered_triton import _attend_ordered, _fold_parts
from tokenspeed_kernels.attention.paged_attention_triton import COMPUTE
from tokenspeed_kernels.attention.paged_attention_triton import paged_attention as any_attention
from tokenspeed_kernels.attention.schedule_triton import Layout, write_schedule
from tokenspeed_kernels.attention.scratch import Scratch
from tokenspeed_kernels.launch_triton import dependent_launch, next_power_of_2, num_multiprocessors

# Rows of a q tile (a warpgroup's product), keys of a kv tile, and what else makes a program.
_ROWS, _KEYS, _WARPS, _STAGES, _PROGRAMS = 64, 64, 8, 3, 1
# Parts of the longest row: many keep a lone row parallel, and take longer to fold.
_MOST_PARTS = 128


def part_keys(most_keys: int) -> int:
    """Keys of a part where a row has `most_keys` at most: whole kv tiles."""
    return max(-(-most_keys // (_MOST_PARTS * _KEYS)), 4) * _KEYS


class _Kind:
    """Rows first_row to first_row + num_rows: those that decode, whose parts are spread over the
    device and go through the memory of `apart`, or others, whose q tiles are a program's each."""

    def __init__(
        self,
        heads: tuple[int, int, int],
        first_row: int,
        num_rows: int,
        num_tokens: int,
        most_keys: int,
        apart: Scratch | None,
        device: torch.device,
    ) -> None:
        self._heads, self._kv_heads, self._head_dim = heads
        group = self._heads // self._kv_heads
        self._rows = max(_ROWS, next_power_of_2(group))
        self._first_row, self._num_rows, self._apart = first_row, num_rows, apart is not None
        self._part_tiles = part_keys(most_keys) // _KEYS
        tokens = self._rows // group
        programs = num_multiprocessors(device) * _PROGRAMS // self._kv_heads
        self.layout = Layout(
            num_programs=max(programs, 1),
            max_tiles=min(num_tokens // tokens + num_rows, max(num_tokens, 1)),
            tile_tokens=tokens,
            tile_keys=_KEYS if apart is None else part_keys(most_keys),
            repeats=1,
            tile_cost=2 if apart is None else 0,
        )
        self._used = group  # of a tile's rows, where it has one query
        self.schedule = torch.empty(self.layout.size, dtype=torch.int32, device=device)
        slots = 0
        if apart is not None:
            slots = self.layout.num_programs * _MOST_PARTS * self._heads
        values = slots * self._head_dim
        held = (apart or Scratch()).take(values + 2 * slots, device)
        self.parts, self.part_sums = held[:values], held[values:]

    def prepare(self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor) -> None:
        write_schedule(
            self.layout, cu_query_lens, context_lens,
            self._first_row, self._num_rows, self.schedule,
        )  # fmt: skip

    def __call__(
        self,
        q: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        tables: torch.Tensor,
        scale: float,
        v_scale: float,
        out: torch.Tensor,
        early: bool,
    ) -> None:
        layout, pdl = self.layout, dependent_launch(q.device)
        heads = {"H": self._heads, "K": self._kv_heads, "D": self._head_dim}
        _attend_ordered[(layout.num_programs * self._kv_heads,)](
            q, *caches, tables, self.schedule, out, self.parts, self.part_sums,
            tables.stride(0), layout.max_tiles, self._part_tiles, scale, v_scale, **heads,
            BLOCK=caches[0].shape[1], M=self._rows, N=_KEYS, P=layout.num_programs,
            USED=self._used, MOST=_MOST_PARTS, COMPUTE=COMPUTE[caches[0].dtype], APART=self._apart,
            STAGES=_STAGES, EARLY=early, PDL=pdl, num_warps=_WARPS, num_stages=_STAGES,
            launch_pdl=pdl,
        )  # fmt: skip
        if self._apart and layout.num_programs > 1:
            _fold_parts[(layout.max_tiles, self._heads)](
                self.schedule, out, self.parts, self.part_sums, layout.max_tiles, scale, v_scale,
                **heads, P=layout.num_programs, USED=self._used, MOST=_MOST_PARTS, PDL=pdl,
                num_warps=1,
                launch_pdl=pdl,
            )  # fmt: skip


class PagedAttentionOrdered:
    """See `op.BoundPagedAttention`. The order of sums follows from `most_keys` alone, which is
    to be the same for all that are to agree: no row has more keys. Those with one `scratch` run one
    after the other."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        num_decode_rows: int,
        num_extend_rows: int,
        num_extend_tokens: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        *,
        window: int = 0,
        most_keys: int = 1 << 17,
        scratch: Scratch | None = None,
    ) -> None:
        assert num_heads % num_kv_heads == 0 and not window and kv_dtype in COMPUTE
        heads = (num_heads, num_kv_heads, head_dim)
        self._kinds: list[_Kind] = []
        if num_decode_rows:
            rows = (0, num_decode_rows, num_decode_rows)
            self._kinds.append(_Kind(heads, *rows, most_keys, scratch or Scratch(), device))
        if num_extend_rows:
            rows = (num_decode_rows, num_extend_rows, num_extend_tokens)
            self._kinds.append(_Kind(heads, *rows, most_keys, None, device))

    def schedule(self, cu_query_lens: torch.Tensor, context_lens: torch.Tensor) -> None:
        """See `op.BoundPagedAttention`."""
        for kind in self._kinds:
            kind.prepare(cu_query_lens, context_lens)

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        scale: float,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        sinks: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        early: bool = True,
    ) -> torch.Tensor:
        """See `op.BoundPagedAttention`."""
        assert sinks is None and q.is_contiguous() and block_tables.dtype is torch.int32
        assert k_cache.is_contiguous() and v_cache.is_contiguous()
        if out is None:
            out = torch.empty_like(q)
        assert out.is_contiguous()
        scale *= k_scale * math.log2(math.e)
        for kind in self._kinds:
            kind(q, (k_cache, v_cache), block_tables, scale, v_scale, out, early)
        return out


# See `op.PagedAttention`.
paged_attention = functools.partial(any_attention, bind=PagedAttentionOrdered)
