"""The one decoder. ModelConfig's facts and the weights that are there decide what it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tokenspeed_kernels.attention.scratch import Scratch
from tokenspeed_kernels.gemm.op import Unnormed
from tokenspeed_kernels.latent.op import LatentShape

from tokenspeed import plan
from tokenspeed.cache.kv import KvCache
from tokenspeed.layers.attention import (
    Attention,
    AttentionInputs,
    BoundAttention,
    Heads,
    kind_of_heads,
    rows_of,
)
from tokenspeed.layers.expert_load import ExpertLoad
from tokenspeed.layers.kernels import Kernels
from tokenspeed.layers.latent import LatentAttention
from tokenspeed.layers.linear import linear
from tokenspeed.layers.mlp import Mlp
from tokenspeed.layers.moe import Moe
from tokenspeed.layers.rope import cos_sin_table
from tokenspeed.weights.parameter import Weights


class Decoder:
    """Tokens to hidden states to logits, over a paged cache.

    Lives on the device of the weights; `dtype` is that of the activations. `max_model_len` bounds
    every position that it is ever given. Keys and values of `chunk_tokens` tokens are made from
    latents at once, where they are. Keeps no state between calls but the cache, and what
    `expert_load` counts.
    """

    def __init__(
        self,
        config: plan.ModelConfig,
        weights: Weights,
        kernels: Kernels,
        cache: KvCache,
        dtype: torch.dtype,
        max_model_len: int,
        chunk_tokens: int = 0,
        expert_load: ExpertLoad | None = None,
    ) -> None:
        table = weights.matrices["embedding"]
        self._embed = kernels.embedding(table.format)(table, dtype)
        assert config.rope is not None, "up refuses what this build cannot run"
        cos_sin = cos_sin_table(config.rope, max_model_len, table.data.device)
        sequence, eps = config.sequence(), config.norm_eps
        mixers = [layer.mixer for layer in sequence]
        mixes = [
            _mixer(layer.mixer, eps, weights, index, kernels, cache, cos_sin, chunk_tokens)
            for index, layer in enumerate(sequence)
        ]
        feeds = [
            _feed_forward(layer.feed_forward, weights, f"layers.{index}.", kernels, expert_load)
            for index, layer in enumerate(sequence)
        ]
        norm = functools.partial(_norm, weights, eps, kernels)
        # Each norm adds the branch before it to the residual: a layer ends in the next one's norm.
        ends = [norm(f"layers.{index}.attn_norm", mix) for index, mix in enumerate(mixes)][1:]
        ends.append(norm("final_norm", None))
        middles = [norm(f"layers.{index}.mlp_norm", feed) for index, feed in enumerate(feeds)]
        self._first_norm = weights.vectors["layers.0.attn_norm"]
        self._layers = tuple(zip(mixes, middles, feeds, ends, strict=True))
        # The last layer ends in a norm of another form.
        some = {sequence.index(layer) for layer, _ in config.kinds()} | {len(sequence) - 1}
        self._some_layers = tuple(self._layers[index] for index in sorted(some))
        if config.tie_embeddings:
            self._head = kernels.linear(table.format)(table, None)
        else:
            self._head = linear(weights, "head", kernels)
        self._rms_norm, self._eps = kernels.rms_norm(), eps
        self._device = table.data.device
        self._binders = _binders(
            mixers, kernels, cache.tensors[0].dtype, self._device, max_model_len
        )
        self._extend = kernels.bound("latent_extend") if kernels.has("latent_extend") else None
        self._chunk_tokens = chunk_tokens
        self._expert_load = expert_load
        self._dtype = dtype

    def bind(
        self, decode_rows: int, extend_rows: int, extend_tokens: int, keep_out: bool = False
    ) -> BoundAttention | None:
        """Attention for steps of up to so many rows of one token, so many longer ones and so many
        tokens of the latter; None where the kernel is not bound to shapes. `keep_out`: the output
        is kept between steps and starts as 0, so that rows of padding hold numbers."""
        if not self._binders:
            return None
        shape = (decode_rows, extend_rows, extend_tokens)
        kernels = {heads: bind(*shape) for heads, bind in self._binders.items()}
        outs = self._outs(decode_rows + extend_tokens) if keep_out else None
        return BoundAttention(kernels, outs)

    def bind_expanded(
        self, decode_rows: int, extend_rows: int, extend_tokens: int
    ) -> BoundAttention | None:
        """As `bind` with `keep_out`, for steps whose longer rows are expanded."""
        if self._extend is None:
            return None
        kernels = {heads: bind(decode_rows, 0, 0) for heads, bind in self._binders.items()}
        extends = {
            heads: self._extend(
                LatentShape(
                    heads.num_heads, heads.rank, heads.nope_dim, heads.rope_dim, heads.width
                ),
                extend_rows,
                extend_tokens,
                self._chunk_tokens,
                self._device,
            )
            for heads in kernels
        }
        return BoundAttention(kernels, self._outs(decode_rows + extend_tokens), extends)

    @property
    def expert_load(self) -> ExpertLoad | None:
        """What counts the choices of experts, None where nothing does."""
        return self._expert_load

    @property
    def expands(self) -> bool:
        """Whether there is a kernel bound to shapes that makes keys and values of latents."""
        return self._extend is not None

    def _outs(self, tokens: int) -> dict[Heads, torch.Tensor]:
        return {
            heads: torch.zeros(
                tokens, heads.num_heads, heads.width, dtype=self._dtype, device=self._device
            )
            for heads in self._binders
        }

    def forward(
        self,
        tokens: torch.Tensor,
        inputs: AttentionInputs,
        wanted: torch.Tensor | None = None,
        *,
        brief: bool = False,
    ) -> torch.Tensor:
        """`tokens` int32 [T] to final, normed hidden states [T, hidden], or [S, hidden] of those
        that int32 `wanted` [S] names: nobody reads what the last layer makes of the others but
        their keys and values. `brief`: through the first layer of each kind and the last one alone,
        which launch every kernel that there is."""
        residual = self._embed(tokens)
        x = self._rms_norm(residual, self._first_norm, self._eps)
        layers = self._some_layers if brief else self._layers
        for attention, middle, mlp, end in layers[:-1]:
            x, residual = middle(attention(x, inputs), residual)
            x, residual = end(mlp(x), residual)
        # Who counts experts counts those of all tokens.
        kept = wanted if self._expert_load is None else None
        attention, middle, mlp, end = layers[-1]
        x, residual = attention(x, inputs, kept), rows_of(residual, kept)
        if not len(residual):
            return residual
        x, residual = middle(x, residual)
        x, _ = end(mlp(x), residual)
        if self._expert_load is not None:
            self._expert_load.count(inputs.slots[0])
            x = rows_of(x, wanted)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden] to float32 [N, vocab]."""
        return self._head(hidden, out_dtype=torch.float32)


# Adds a branch [T, hidden], or its parts, to the residual; the norm of the sum, as its reader
# takes it, and the sum, in the residual's place or in one of its own.
Norm = Callable[[torch.Tensor, torch.Tensor], tuple[Any, torch.Tensor]]


def _norm(
    weights: Weights,
    eps: float,
    kernels: Kernels,
    name: str,
    reader: Attention | LatentAttention | Mlp | Moe | None,
) -> Norm:
    """In float8 too of as many rows as `reader`, and nobody else, reads so; of one row left to the
    reader where its first product makes it."""
    weight, add_rms_norm = weights.vectors[name], kernels.add_rms_norm()
    least = None if reader is None else reader.float8_from
    narrow = None if least is None else kernels.fusions.add_rms_norm_float8()
    itself = reader is not None and reader.norms_itself

    def normed(x: torch.Tensor, residual: torch.Tensor) -> tuple[Any, torch.Tensor]:
        rows = len(residual)
        if itself and rows == 1:
            total, made = torch.empty_like(residual), torch.empty_like(residual)
            return Unnormed(x, residual, weight, eps, total, made), total
        norm: Callable[..., Any] = add_rms_norm
        if narrow is not None and least is not None and rows >= least:
            norm = narrow
        return norm(x, residual, weight, eps), residual

    return normed


# Attention for so many rows that decode, other rows, and tokens of the latter.
Binder = Callable[..., Any]


def _binders(
    mixers: Sequence[plan.Mixer],
    kernels: Kernels,
    kv_dtype: torch.dtype,
    device: torch.device,
    most_keys: int,
) -> dict[Heads, Binder]:
    """For each kind of heads what binds its kernel to a shape; none where a kernel has no such
    form."""
    found: dict[Heads, Binder] = {}
    for mixer in mixers:
        more: dict[str, Any] = {}
        assert isinstance(mixer, plan.Attention | plan.LatentAttention)
        heads = kind_of_heads(mixer)
        if heads in found:
            continue
        if isinstance(mixer, plan.LatentAttention):
            bound = kernels.bound("latent_attention")
            shape = (heads.num_heads, heads.rank, heads.rope_dim)
        else:
            bound = kernels.bound("paged_attention")
            # What kernels need not know of that divide the keys by what a step has.
            if kernels.is_ordered("paged_attention"):
                more = {"most_keys": most_keys, "scratch": Scratch()}
            shape = (heads.num_heads, heads.num_kv_heads, heads.width)
        if bound is None:
            return {}
        if heads.window:
            more |= {"window": heads.window}
        found[heads] = functools.partial(_bind, bound, shape, kv_dtype, device, more)
    return found


def _bind(
    bound: Callable[..., Any],
    shape: tuple[int, int, int],
    kv_dtype: torch.dtype,
    device: torch.device,
    more: dict[str, Any],
    *rows: int,
) -> Any:
    return bound(*shape, *rows, kv_dtype, device, **more)


def _mixer(
    facts: plan.Mixer,
    eps: float,
    weights: Weights,
    index: int,
    kernels: Kernels,
    cache: KvCache,
    cos_sin: torch.Tensor,
    chunk_tokens: int,
) -> Attention | LatentAttention:
    if isinstance(facts, plan.LatentAttention):
        return LatentAttention(facts, eps, weights, index, kernels, cache, cos_sin, chunk_tokens)
    assert isinstance(facts, plan.Attention), "up refuses what this build cannot run"
    return Attention(facts, eps, weights, index, kernels, cache, cos_sin)


def _feed_forward(
    facts: plan.FeedForward,
    weights: Weights,
    prefix: str,
    kernels: Kernels,
    load: ExpertLoad | None,
) -> Mlp | Moe:
    if isinstance(facts, plan.Moe):
        return Moe(facts, weights, prefix, kernels, load)
    return Mlp(weights, prefix, kernels, reader="add_rms_norm")
