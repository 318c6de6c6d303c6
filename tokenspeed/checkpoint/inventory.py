"""Every tensor of a model, from its facts: exact counts, and what a rank holds of each.

Shapes are those of computation: [out, in] matrices, one per product and expert. How a container
splits or fuses them does not change a count.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from tokenspeed.plan import (
    Attention,
    ChannelDelta,
    Dense,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    Mixer,
    ModelConfig,
    Moe,
)

EMBEDDING, HEAD, ATTENTION, DENSE = "embedding", "head", "attention", "dense"
SHARED, EXPERTS, ROUTER, VECTORS = "shared experts", "experts", "router", "norms and biases"
# In the order in which they are shown.
GROUPS = (EMBEDDING, ATTENTION, DENSE, SHARED, EXPERTS, ROUTER, HEAD, VECTORS)


@dataclass(frozen=True, slots=True)
class Tensor:
    """`copies` equal matrices [out, width]; a vector has a width of 1 and `vector` set, and is
    `exact` where it is float32 whatever the others are.

    `group` decides over which ranks it is spread and, for a matrix, its format. `axis` is the one
    that is cut, "out" or "in", None where each rank keeps it whole; `units` the indivisible pieces
    along it: with fewer pieces than ranks each rank keeps one.
    """

    group: str
    out: int
    width: int = 1
    copies: int = 1
    axis: str | None = None
    units: int = 1
    vector: bool = False
    exact: bool = False

    @property
    def elements(self) -> int:
        return self.copies * self.out * self.width

    def share(self, tp: int, ep: int = 1) -> Tensor:
        """What the largest of `tp` ranks holds, the copies dealt out over `ep`."""
        whole = replace(self, copies=ceil(self.copies / ep))
        if self.axis is None or tp == 1:
            return whole
        units = ceil(self.units / tp)
        if self.axis == "out":
            return replace(whole, out=self.out // self.units * units, units=units)
        return replace(whole, width=self.width // self.units * units, units=units)


@functools.lru_cache(maxsize=64)
def model_tensors(config: ModelConfig) -> tuple[Tensor, ...]:
    """Every tensor of the model, equal layers counted in `copies`; draft layers left out."""
    vocab, hidden = config.vocab_size, config.hidden_size
    tensors = [
        Tensor(EMBEDDING, vocab, hidden, axis="out", units=vocab),
        _norm(ATTENTION, hidden),
    ]
    if not config.tie_embeddings:
        tensors.append(Tensor(HEAD, vocab, hidden, axis="out", units=vocab))
    for layer, count in config.kinds():
        tensors += [
            replace(tensor, copies=tensor.copies * count) for tensor in layer_tensors(layer, config)
        ]
    return tuple(tensors)


def draft_tensors(config: ModelConfig) -> tuple[Tensor, ...]:
    """The next-token-prediction layers: each a layer like the last one, behind a product that
    joins the hidden state with the embedding of the token, and three norms. Embedding and head
    are the model's own."""
    hidden, last = config.hidden_size, config.sequence()[-1]
    extra = (
        Tensor(DENSE, hidden, 2 * hidden, axis="out", units=hidden),
        Tensor(DENSE, 3 * hidden, vector=True),
    )
    return tuple(
        replace(tensor, copies=tensor.copies * config.draft_layers)
        for tensor in (*layer_tensors(last, config), *extra)
        if config.draft_layers
    )


def layer_tensors(layer: Layer, config: ModelConfig) -> tuple[Tensor, ...]:
    """The tensors of one layer, its norms included."""
    hidden = config.hidden_size
    tensors = [*_mixer(layer.mixer, hidden), *_feed_forward(layer.feed_forward, hidden)]
    tensors += [_norm(ATTENTION, hidden), _norm(ATTENTION, hidden)]
    if config.residual_block is not None:
        # Before each half of a layer: a norm, and a product to one logit per earlier block.
        tensors.append(Tensor(ATTENTION, 4 * hidden, vector=True))
    return tuple(tensors)


def _norm(group: str, width: int) -> Tensor:
    return Tensor(group, width, vector=True)


def _mixer(mixer: Mixer, hidden: int) -> Iterator[Tensor]:
    if isinstance(mixer, Attention):
        return _grouped(mixer, hidden)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden)
    if isinstance(mixer, GatedDeltaNet):
        return _gated_delta(mixer, hidden)
    return _channel_delta(mixer, hidden)


def _heads(out: int, heads: int, width: int) -> Tensor:
    return Tensor(ATTENTION, heads * out, width, axis="out", units=heads)


def _back(heads: int, size: int, hidden: int) -> Tensor:
    return Tensor(ATTENTION, hidden, heads * size, axis="in", units=heads)


def _per_head(heads: int, size: int = 1) -> Tensor:
    return Tensor(ATTENTION, heads * size, axis="out", units=heads, vector=True)


def _grouped(mixer: Attention, hidden: int) -> Iterator[Tensor]:
    heads, kv_heads, size = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    query = 2 * size if mixer.gated else size
    yield _heads(query, heads, hidden)
    yield _heads(size, kv_heads, hidden)
    yield _heads(size, kv_heads, hidden)
    yield _back(heads, size, hidden)
    if mixer.qkv_bias:
        yield _per_head(heads, query)
        yield _per_head(kv_heads, size)
        yield _per_head(kv_heads, size)
    if mixer.o_bias:
        yield _norm(ATTENTION, hidden)
    if mixer.sinks:
        yield _per_head(heads)
    if mixer.qk_norm == "head":
        yield _norm(ATTENTION, 2 * size)
    elif mixer.qk_norm == "all":
        yield _per_head(heads, size)
        yield _per_head(kv_heads, size)


def _latent(mixer: LatentAttention, hidden: int) -> Iterator[Tensor]:
    heads, query = mixer.num_heads, mixer.nope_dim + mixer.rope_dim
    if mixer.q_rank is None:
        yield _heads(query, heads, hidden)
    else:
        yield Tensor(ATTENTION, mixer.q_rank, hidden)
        yield _heads(query, heads, mixer.q_rank)
        yield _norm(ATTENTION, mixer.q_rank)
    yield Tensor(ATTENTION, mixer.kv_rank + mixer.rope_dim, hidden)
    yield _heads(mixer.nope_dim + mixer.value_dim, heads, mixer.kv_rank)
    yield _norm(ATTENTION, mixer.kv_rank)
    yield _back(heads, mixer.value_dim, hidden)
    if mixer.gated:
        yield _heads(mixer.value_dim, heads, hidden)
    if mixer.bias:
        rank = 0 if mixer.q_rank is None else mixer.q_rank
        yield _norm(ATTENTION, rank + mixer.kv_rank + mixer.rope_dim + hidden)


def _gated_delta(mixer: GatedDeltaNet, hidden: int) -> Iterator[Tensor]:
    keys, values = mixer.key_heads, mixer.value_heads
    yield _heads(2 * mixer.key_dim, keys, hidden)
    yield _heads(2 * mixer.value_dim + 2, values, hidden)  # values, gate, decay and strength
    yield _back(values, mixer.value_dim, hidden)
    yield _per_head(keys, 2 * mixer.key_dim * mixer.conv_width)
    yield _per_head(values, mixer.value_dim * mixer.conv_width)
    yield _per_head(values, 2)  # the decay's rate and bias
    yield _norm(ATTENTION, mixer.value_dim)


def _channel_delta(mixer: ChannelDelta, hidden: int) -> Iterator[Tensor]:
    heads, size = mixer.num_heads, mixer.head_dim
    yield _heads(3 * size, heads, hidden)
    yield _back(heads, size, hidden)
    yield _heads(1, heads, hidden)
    yield Tensor(ATTENTION, size, hidden)  # the decay, through a rank of one head
    yield _heads(size, heads, size)
    if mixer.full_gate:
        yield _heads(size, heads, hidden)
    else:
        yield Tensor(ATTENTION, size, hidden)
        yield _heads(size, heads, size)
    yield _per_head(heads, 3 * size * mixer.conv_width)
    yield _per_head(heads, size + 1)  # the decay's bias per channel and rate per head
    yield _norm(ATTENTION, size)


def _feed_forward(feed: FeedForward, hidden: int) -> Iterator[Tensor]:
    if isinstance(feed, Dense):
        return _gated_feed(DENSE, feed.inner, hidden, feed.bias)
    return _moe(feed, hidden)


def _gated_feed(
    group: str, inner: int, hidden: int, bias: bool, copies: int = 1
) -> Iterator[Tensor]:
    for _ in range(2):
        yield Tensor(group, inner, hidden, copies, "out", inner)
    yield Tensor(group, hidden, inner, copies, "in", inner)
    if bias:
        yield Tensor(group, 2 * inner, 1, copies, "out", inner, vector=True)
        yield Tensor(group, hidden, 1, copies, vector=True)


def _moe(feed: Moe, hidden: int) -> Iterator[Tensor]:
    width = feed.latent or hidden
    yield from _gated_feed(EXPERTS, feed.inner, width, feed.expert_bias, feed.experts)
    yield Tensor(ROUTER, feed.experts, hidden)
    if feed.router_bias or feed.selection_bias:
        yield Tensor(ROUTER, feed.experts, vector=True, exact=feed.selection_bias)
    if feed.shared_inner:
        yield from _gated_feed(SHARED, feed.shared_inner, hidden, bias=False)
    if feed.shared_gate:
        yield Tensor(ROUTER, 1, hidden)
    if feed.latent is not None:
        yield Tensor(SHARED, feed.latent, hidden, axis="out", units=feed.latent)
        yield Tensor(SHARED, hidden, feed.latent, axis="out", units=hidden)
    if feed.latent_norm:
        yield Tensor(SHARED, width, vector=True)


def parameters(config: ModelConfig) -> int:
    """All parameters of the model."""
    return sum(tensor.elements for tensor in model_tensors(config))


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token meets: of the experts only the chosen ones."""
    total = parameters(config)
    for layer, count in config.kinds():
        feed = layer.feed_forward
        if isinstance(feed, Moe):
            each = sum(t.elements for t in layer_tensors(layer, config) if t.group == EXPERTS)
            total -= count * each // feed.experts * (feed.experts - feed.top_k)
    return total
