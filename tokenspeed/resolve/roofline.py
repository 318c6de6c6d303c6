"""Bytes, operations and messages of one decode step on one rank: the terms of its time.

A step reads every weight that a token of it meets once, and the cache of every row; it computes
two operations per matrix element and row. Embedding rows are gathered, so only those of the batch
are read. Of E experts, N tokens that choose k each meet E * (1 - (1 - k/E)^N) where the choice is
even; where it is not, they meet fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, log, sqrt

from tokenspeed.checkpoint.formats import stored_bits
from tokenspeed.checkpoint.inventory import (
    DENSE,
    EMBEDDING,
    EXPERTS,
    HEAD,
    SHARED,
    layer_tensors,
)
from tokenspeed.plan import (
    Attention,
    CacheGroup,
    Dense,
    GatedDeltaNet,
    LatentAttention,
    Mixer,
    Moe,
    WeightFormat,
)
from tokenspeed.resolve.shard import DTYPE_BYTES, Formats, Shard

# Kernels that a layer launches when what can be fused is: norm, products, position and cache
# write, attention, and for experts the choice, the sorting and the combination.
MIXER_KERNELS = {Attention: 5, LatentAttention: 7, GatedDeltaNet: 7}
CHANNEL_KERNELS = 9
DENSE_KERNELS, MOE_KERNELS, SHARED_KERNELS = 3, 7, 2
# Embedding, last norm, output product, sampling.
STEP_KERNELS = 6


@dataclass(frozen=True, slots=True)
class Decode:
    """A decode step: `batch` requests of `context` tokens each, over all replicas together."""

    batch: int
    context: int


@dataclass(frozen=True, slots=True)
class Messages:
    """`count` exchanges between ranks, and the bytes that one rank sends in all of them."""

    count: int
    bytes: float


class Roofline:
    """What the steps of one deployment cost on the rank that holds most."""

    def __init__(
        self, shard: Shard, formats: Formats, groups: tuple[CacheGroup, ...], activations: str
    ) -> None:
        self._shard = shard
        self._formats = formats
        self._groups = groups
        self._element = DTYPE_BYTES[activations]
        self._tensors = shard.tensors()

    def rows(self, step: Decode) -> int:
        """Rows of one attention replica."""
        return ceil(step.batch / self._shard.parallel.attention_dp)

    def weight_bytes(self, step: Decode, spread: float = 1.0) -> dict[str, float]:
        """Bytes read per group. `spread` is the share of the experts that tokens choose among."""
        shard, formats = self._shard, self._formats
        totals: dict[str, float] = {}
        for tensor in self._tensors:
            if tensor.group not in (EXPERTS, EMBEDDING):
                size = formats.bytes(tensor)
                totals[tensor.group] = totals.get(tensor.group, 0.0) + size
        config = shard.config
        row = stored_bits(formats.embedding) / 8 * config.hidden_size
        totals[EMBEDDING] = self.rows(step) * row
        if config.tie_embeddings:
            embedding = next(t for t in self._tensors if t.group == EMBEDDING)
            totals[HEAD] = float(formats.bytes(embedding))
        for moe, held in self._experts():
            totals[EXPERTS] = totals.get(EXPERTS, 0.0) + held * met(moe, step.batch, spread)
        return totals

    def _experts(self) -> Iterator[tuple[Moe, float]]:
        """Each kind of experts, and its bytes on this rank over all its layers."""
        config, shard = self._shard.config, self._shard
        for layer, count in config.kinds():
            if isinstance(layer.feed_forward, Moe):
                tensors = [t for t in layer_tensors(layer, config) if t.group == EXPERTS]
                size = sum(self._formats.bytes(shard.share(tensor)) for tensor in tensors)
                yield layer.feed_forward, float(count * size)

    def busiest(self, step: Decode, deviations: float) -> float:
        """The experts that the busiest rank meets over the mean, where they are dealt out whole:
        the largest of n even draws around m is near m + sqrt(2 m ln n)."""
        ranks = self._shard.parallel.expert_ep
        if ranks == 1:
            return 1.0
        skews = []
        for moe, _ in self._experts():
            share = met(moe, step.batch)
            mean = share * moe.experts / ranks
            # No rank meets more experts than it holds.
            skews.append(min(1.0 / share, 1.0 + deviations * sqrt(2 * log(ranks) / mean)))
        return max(skews)

    def cache_bytes(self, step: Decode) -> float:
        """Keys and values read; states are read and written."""
        each = 0
        for group in self._groups:
            if group.kind == "state":
                each += 2 * group.bytes_per_request
            else:
                tokens = step.context if group.window is None else min(step.context, group.window)
                each += group.bytes_per_token * tokens
        return float(self.rows(step) * each)

    def operations(self, step: Decode) -> dict[str, float]:
        """Operations of the products per group, and of attention under "mixing"."""
        shard, parallel, rows = self._shard, self._shard.parallel, self.rows(step)
        # Dense groups gather the rows of the replicas that they span.
        dense_rows = step.batch * parallel.dense_tp / parallel.world_size
        by_group: dict[str, float] = {DENSE: dense_rows, SHARED: dense_rows}
        totals: dict[str, float] = {}
        for tensor in self._tensors:
            if tensor.vector or tensor.group in (EXPERTS, EMBEDDING):
                continue
            work = 2.0 * tensor.elements * by_group.get(tensor.group, rows)
            totals[tensor.group] = totals.get(tensor.group, 0.0) + work
        for layer, count in shard.config.kinds():
            feed = layer.feed_forward
            if isinstance(feed, Moe):
                tensors = [t for t in layer_tensors(layer, shard.config) if t.group == EXPERTS]
                one = sum(t.elements for t in tensors if not t.vector) / feed.experts
                work = 2.0 * one * step.batch * feed.top_k / parallel.world_size
                totals[EXPERTS] = totals.get(EXPERTS, 0.0) + count * work
            mixing = _mixing(layer.mixer, step.context) / parallel.attention_tp
            totals["mixing"] = totals.get("mixing", 0.0) + count * rows * mixing
        return totals

    def messages(self, step: Decode) -> Messages:
        """Sums of partial results after attention and after each feed-forward; where replicas
        share experts, tokens go to them and back."""
        shard, parallel = self._shard, self._shard.parallel
        hidden = shard.config.hidden_size * self._element
        count, size = 0, 0.0

        def reduce(ranks: int, rows: float) -> None:
            nonlocal count, size
            if ranks > 1:
                count += 1
                size += 2 * (ranks - 1) / ranks * rows * hidden

        rows = self.rows(step)
        for layer, times in shard.config.kinds():
            before = count, size
            reduce(parallel.attention_tp, rows)
            feed = layer.feed_forward
            if isinstance(feed, Dense):
                reduce(parallel.dense_tp, rows)
            elif parallel.attention_dp == 1:
                reduce(parallel.world_size, rows)
            else:
                width = (feed.latent or shard.config.hidden_size) * self._element
                count += 2
                size += 2 * rows * feed.top_k * width / parallel.attention_tp
                if feed.shared_inner:
                    reduce(parallel.dense_tp, rows)
            count = before[0] + times * (count - before[0])
            size = before[1] + times * (size - before[1])
        if parallel.attention_tp > 1:  # the logits
            count += 1
            size += rows * shard.config.vocab_size * 4 / parallel.attention_tp
        return Messages(count, size)

    def kernels(self) -> int:
        """Kernels launched in one step."""
        total = STEP_KERNELS
        for layer, count in self._shard.config.kinds():
            feed = layer.feed_forward
            each = MIXER_KERNELS.get(type(layer.mixer), CHANNEL_KERNELS)
            if isinstance(feed, Dense):
                each += DENSE_KERNELS
            else:
                each += MOE_KERNELS + (SHARED_KERNELS if feed.shared_inner else 0)
            total += count * each
        return total


def met(moe: Moe, tokens: int, spread: float = 1.0) -> float:
    """Share of the experts that `tokens` meet, when each chooses evenly among `spread` of them."""
    among = max(float(moe.top_k), moe.experts * spread)
    return among / moe.experts * (1.0 - (1.0 - moe.top_k / among) ** tokens)


def _mixing(mixer: Mixer, context: int) -> float:
    """Operations of one row in one layer beside the products, on all heads."""
    if isinstance(mixer, Attention):
        tokens = context if mixer.window is None else min(context, mixer.window)
        return 4.0 * mixer.num_heads * mixer.head_dim * tokens
    if isinstance(mixer, LatentAttention):
        # Scores against latent and rope part, then a sum of latents, for every head.
        return 2.0 * mixer.num_heads * (2 * mixer.kv_rank + mixer.rope_dim) * context
    if isinstance(mixer, GatedDeltaNet):
        return 6.0 * mixer.value_heads * mixer.key_dim * mixer.value_dim
    return 6.0 * mixer.num_heads * mixer.head_dim**2


def product_type(kept: WeightFormat) -> str:
    """The fastest type of product that takes weights of this format as they are; those of 4 bits
    are widened to bfloat16 by every kernel there is."""
    if kept in (WeightFormat.FP8, WeightFormat.FP8_BLOCK):
        return "fp8"
    if kept in (WeightFormat.Q4_1, WeightFormat.Q8_0):
        return "int8"
    return "bfloat16"
