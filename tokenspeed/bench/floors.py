"""The least time that a step can take: bytes over the device's read rate, operations over its
rate of products. Nothing is measured beside such a floor without it."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.plan import Attention, Dense, ModelConfig, Plan

_ELEMENT = {"float32": 4, "bfloat16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes per second of the best read-only stream, and operations per second that dense
    bfloat16 products sustain; `source` says where they were measured."""

    read: float
    products: float
    source: str


# By the name that the driver gives the device.
CEILINGS = {
    "NVIDIA H200": Ceilings(4665e9, 663e12, "measured on one NVIDIA H200, products over 3 s"),
}


@dataclass(frozen=True, slots=True)
class Floors:
    """Of a dense model on one device."""

    weight_bytes: int  # read by every step
    kv_bytes_per_token: int
    flops_per_token: float  # products of one token
    flops_per_pair: float  # of a query token and one token that it sees
    ceilings: Ceilings

    def decode_seconds(self, batch: int, context: float) -> float:
        size = self.weight_bytes + batch * context * self.kv_bytes_per_token
        return size / self.ceilings.read

    def prefill_seconds(self, tokens: int, context: int = 0) -> float:
        """`tokens` new ones behind `context` cached ones."""
        pairs = tokens * context + tokens * tokens / 2
        flops = tokens * self.flops_per_token + pairs * self.flops_per_pair
        return flops / self.ceilings.products


def floors(plan: Plan, device_name: str) -> Floors:
    """Raises KeyError for a device whose ceilings were not measured."""
    config = plan.model.config
    read = sum(_product_elements(config)) * 2
    element = _ELEMENT[plan.cache.dtype]
    attentions = [layer.mixer for layer in config.sequence()]
    assert all(isinstance(mixer, Attention) for mixer in attentions)
    kv = sum(2 * m.num_kv_heads * m.head_dim for m in attentions if isinstance(m, Attention))
    pair = sum(4 * m.num_heads * m.head_dim for m in attentions if isinstance(m, Attention))
    layers = sum(_product_elements(config)[:-1])
    return Floors(read, kv * element, 2.0 * layers, float(pair), CEILINGS[device_name])


def _product_elements(config: ModelConfig) -> list[int]:
    """Weights that a decode step multiplies by, layer after layer; the output projection last."""
    counts = []
    for layer in config.sequence():
        mixer, feed = layer.mixer, layer.feed_forward
        assert isinstance(mixer, Attention) and isinstance(feed, Dense)
        heads = 2 * mixer.num_heads + 2 * mixer.num_kv_heads
        counts.append(config.hidden_size * (heads * mixer.head_dim + 3 * feed.inner))
    return [*counts, config.hidden_size * config.vocab_size]
