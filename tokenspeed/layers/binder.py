"""Binds the model's attention kernels to shapes of batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenspeed_kernels.attention.scratch import Scratch
from tokenspeed_kernels.latent.op import LatentShape

from tokenspeed import plan
from tokenspeed.layers.attention import BoundAttention, Heads, kind_of_heads
from tokenspeed.layers.kernels import Kernels

# A kernel for so many rows that decode, other rows, and tokens of the latter.
_Bind = Callable[[int, int, int], Any]


class AttentionBinder:
    """Makes attention that is bound to a shape, for all kinds of heads of a model at once.

    `dtype` is that of what attention gives, `kv_dtype` that of the cache; no row has more than
    `max_keys` keys. Keys and values of `chunk_tokens` tokens are made from latents at once.
    """

    def __init__(
        self,
        mixers: Sequence[plan.Mixer],
        kernels: Kernels,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
        max_keys: int,
        chunk_tokens: int,
    ) -> None:
        self._dtype, self._kv_dtype, self._device = dtype, kv_dtype, device
        self._chunk_tokens = chunk_tokens
        self._extend = kernels.bound("latent_extend") if kernels.has("latent_extend") else None
        kinds: dict[Heads, _Bind | None] = {}
        for mixer in mixers:
            assert isinstance(mixer, plan.Attention | plan.LatentAttention)
            heads = kind_of_heads(mixer)
            if heads not in kinds:
                kinds[heads] = self._bind_of(heads, kernels, max_keys)
        # A step's attention is bound for all kinds of heads, or for none.
        binds = {heads: bind for heads, bind in kinds.items() if bind is not None}
        self._binds = binds if len(binds) == len(kinds) else {}

    @property
    def expands(self) -> bool:
        """Whether `bind_expanded` has a kernel that makes keys and values from latents."""
        return self._extend is not None

    def bind(
        self, decode_rows: int, extend_rows: int, extend_tokens: int, keep_out: bool = False
    ) -> BoundAttention | None:
        """Attention for steps of up to so many rows of one token, so many longer ones and so many
        tokens of the latter; None where the kernel is not bound to shapes. `keep_out`: the output
        is kept between steps and starts as 0, so that rows of padding hold numbers."""
        if not self._binds:
            return None
        kernels = self._bound(decode_rows, extend_rows, extend_tokens)
        outs = self._outs(decode_rows + extend_tokens) if keep_out else None
        return BoundAttention(kernels, outs)

    def bind_expanded(
        self, decode_rows: int, extend_rows: int, extend_tokens: int
    ) -> BoundAttention | None:
        """As `bind` with `keep_out`, for steps whose longer rows are expanded."""
        if self._extend is None:
            return None
        kernels = self._bound(decode_rows, 0, 0)
        rest = (extend_rows, extend_tokens, self._chunk_tokens, self._device)
        extends = {
            heads: self._extend(
                LatentShape(
                    heads.num_heads, heads.rank, heads.nope_dim, heads.rope_dim, heads.width
                ),
                *rest,
            )
            for heads in kernels
        }
        return BoundAttention(kernels, self._outs(decode_rows + extend_tokens), extends)

    def _bind_of(self, heads: Heads, kernels: Kernels, max_keys: int) -> _Bind | None:
        """What binds the kernel of such heads, None where it has no such form."""
        more: dict[str, Any] = {"window": heads.window} if heads.window else {}
        if heads.rank:
            bound = kernels.bound("latent_attention")
            shape = (heads.num_heads, heads.rank, heads.rope_dim)
        else:
            bound = kernels.bound("paged_attention")
            # What kernels need not know of that divide the keys by what a step has.
            if kernels.is_ordered("paged_attention"):
                more |= {"most_keys": max_keys, "scratch": Scratch()}
            shape = (heads.num_heads, heads.num_kv_heads, heads.width)
        if bound is None:
            return None
        return functools.partial(_bind, bound, shape, (self._kv_dtype, self._device), more)

    def _bound(self, *rows: int) -> dict[Heads, Any]:
        return {heads: bind(*rows) for heads, bind in self._binds.items()}

    def _outs(self, tokens: int) -> dict[Heads, torch.Tensor]:
        return {
            heads: torch.zeros(
                tokens, heads.num_heads, heads.width, dtype=self._dtype, device=self._device
            )
            for heads in self._binds
        }


def _bind(
    bound: Callable[..., Any],
    shape: tuple[int, int, int],
    where: tuple[torch.dtype, torch.device],
    more: dict[str, Any],
    *rows: int,
) -> Any:
    return bound(*shape, *rows, *where, **more)
