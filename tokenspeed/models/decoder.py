"""The one decoder. ModelConfig's facts and the weights that are there decide what it computes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from tokenspeed_kernels.gemm.op import Unnormed

from tokenspeed import plan
from tokenspeed.cache.kv import KvCache
from tokenspeed.layers.attention import Attention, AttentionInputs, rows_of
from tokenspeed.layers.binder import AttentionBinder
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
    `expert_load` counts. `attention` binds its kernels to shapes of batch; steps carry the result.
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
        self.attention = AttentionBinder(
            [layer.mixer for layer in sequence],
            kernels,
            dtype,
            cache.tensors[0].dtype,
            table.data.device,
            max_model_len,
            chunk_tokens,
        )
        self._expert_load = expert_load

    @property
    def expert_load(self) -> ExpertLoad | None:
        """What counts the choices of experts, None where nothing does."""
        return self._expert_load

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
