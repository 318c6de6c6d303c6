"""What a plan needs that this build does not compute yet, as data."""

from __future__ import annotations

from collections.abc import Iterator

from tokenspeed.plan import (
    Attention,
    ChannelDelta,
    GatedDeltaNet,
    LatentAttention,
    Layer,
    ModelConfig,
    Moe,
)
from tokenspeed.resolve.facts import BuildFacts
from tokenspeed.resolve.ledger import Ledger
from tokenspeed.resolve.shard import Formats, Shard


def note_unrunnable(shard: Shard, formats: Formats, build: BuildFacts, ledger: Ledger) -> None:
    """Parts of the model and formats of its weights that `build` has no code for."""
    for part in model_parts(shard.config):
        if part not in build.computes:
            ledger.need(part, f"this build cannot run {part} yet")
    present = {tensor.group for tensor in shard.tensors() if not tensor.vector}
    for kept in sorted({formats[group] for group in present}):
        if kept not in build.formats:
            ledger.need(f"weights in {kept}", f"this build cannot load or make {kept} yet")


def model_parts(config: ModelConfig) -> tuple[str, ...]:
    """What the model has beyond grouped-query attention over everything and dense
    feed-forwards, by name, each once."""
    found = [part for layer, _ in config.kinds() for part in _layer_parts(layer)]
    if config.activation != "silu":
        found.append(f"{config.activation} activations")
    if config.residual_block is not None:
        found.append("attention over depth")
    mixers = [layer.mixer for layer, _ in config.kinds()]
    grouped = [mixer for mixer in mixers if isinstance(mixer, Attention)]
    if len({(mixer.num_kv_heads, mixer.head_dim) for mixer in grouped}) > 1:
        found.append("layers of different kv heads")
    if config.rope is None and grouped:
        found.append("attention without positions")
    return tuple(dict.fromkeys(found))


def _layer_parts(layer: Layer) -> Iterator[str]:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        if mixer.window is not None:
            yield "attention windows"
        if mixer.sinks:
            yield "attention sinks"
        if mixer.gated:
            yield "gated attention"
        if mixer.qk_norm == "all":
            yield "norms over all heads"
    elif isinstance(mixer, LatentAttention):
        yield "latent attention"
        if mixer.gated:
            yield "gated attention"
        if not mixer.rotary:
            yield "latent attention without positions"
    elif isinstance(mixer, GatedDeltaNet):
        yield "gated delta nets"
    elif isinstance(mixer, ChannelDelta):
        yield "channel-wise delta nets"
    feed = layer.feed_forward
    if isinstance(feed, Moe):
        yield "experts"
        if feed.latent is not None:
            yield "experts in a latent space"
        if feed.shared_gate:
            yield "gated shared experts"
