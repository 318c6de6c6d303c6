"""The least time that a step can take: bytes over the device's read rate, operations over its
rate of products. Nothing is measured beside such a floor without it."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.checkpoint.formats import matrix_bytes
from tokenspeed.checkpoint.inventory import EMBEDDING, EXPERTS, HEAD, model_tensors
from tokenspeed.plan import Attention, CacheGroup, LatentAttention, Mixer, Moe, Plan


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
    """Of a model on one device. Where nobody counted how many experts are read, they are taken to
    be chosen evenly: of a batch of B tokens that take k of E each, E (1 - (1 - k / E)^B)."""

    weight_bytes: int  # read by every step
    expert_bytes: int  # of all experts
    experts: int  # of a layer
    chosen: float  # share of the experts that one token takes
    cache: tuple[CacheGroup, ...]
    flops_per_token: float  # products of one token
    flops_per_pair: float  # of a query token and one token that it sees
    ceilings: Ceilings

    def decode_seconds(
        self, batch: int, context: float, experts_read: float | None = None
    ) -> float:
        share = 1 - (1 - self.chosen) ** batch
        if experts_read is not None and self.experts:
            share = experts_read / self.experts
        read = self.expert_bytes * share
        kept = sum(
            group.bytes_per_token * min(context, group.window or context) for group in self.cache
        )
        return (self.weight_bytes + read + batch * kept) / self.ceilings.read

    def prefill_seconds(self, tokens: int, context: int = 0) -> float:
        """`tokens` new ones behind `context` cached ones."""
        pairs = tokens * context + tokens * tokens / 2
        flops = tokens * self.flops_per_token + pairs * self.flops_per_pair
        return flops / self.ceilings.products


def floors(plan: Plan, device_name: str) -> Floors:
    """Raises KeyError for a device whose ceilings were not measured."""
    config, formats = plan.model.config, plan.model.formats
    matrices = [tensor for tensor in model_tensors(config) if not tensor.vector]
    size = {
        group: sum(
            tensor.copies * matrix_bytes(formats[group], tensor.out, tensor.width)
            for tensor in matrices
            if tensor.group == group
        )
        for group in {tensor.group for tensor in matrices}
    }
    # Of an embedding one row is read, unless it is the output projection too.
    dense = sum(
        size[group]
        for group in size
        if group != EXPERTS and (group != EMBEDDING or config.tie_embeddings)
    )
    feeds = [layer.feed_forward for layer in config.sequence()]
    moe = next((feed for feed in feeds if isinstance(feed, Moe)), None)
    chosen = moe.top_k / moe.experts if moe else 0.0
    ends = {EMBEDDING, HEAD}
    products = sum(
        tensor.elements * (chosen if tensor.group == EXPERTS else 1.0)
        for tensor in matrices
        if tensor.group not in ends
    )
    return Floors(
        weight_bytes=dense,
        expert_bytes=size.get(EXPERTS, 0),
        experts=moe.experts if moe else 0,
        chosen=chosen,
        cache=plan.cache.groups,
        flops_per_token=2.0 * products,
        flops_per_pair=float(sum(_pair_flops(layer.mixer) for layer in config.sequence())),
        ceilings=CEILINGS[device_name],
    )


def _pair_flops(mixer: Mixer) -> int:
    """Operations for a query token and one token that it sees, keys and values of the heads made
    outside."""
    if isinstance(mixer, LatentAttention):
        return 2 * mixer.num_heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
    assert isinstance(mixer, Attention)
    return 4 * mixer.num_heads * mixer.head_dim
