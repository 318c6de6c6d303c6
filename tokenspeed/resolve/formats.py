"""Formats of the weights in memory: the stored ones where a kernel computes on them."""

from __future__ import annotations

from tokenspeed.plan import WeightFormat
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.device import Target
from tokenspeed.resolve.facts import ModelFacts
from tokenspeed.resolve.kernels import Setting, Use, is_fast, is_supported, linear_use, uses
from tokenspeed.resolve.ledger import HARDWARE, MODEL, RECIPE, Ledger
from tokenspeed.resolve.memory import Shard

KEY = "quantization.weights"


def settle_formats(
    recipe: Recipe,
    model: ModelFacts,
    target: Target,
    shard: Shard,
    activations: str,
    ledger: Ledger,
) -> tuple[WeightFormat, WeightFormat]:
    """(format of the products, format of the embedding)."""
    wish = recipe.quantization.weights
    if wish in ("float32", "bfloat16"):
        chosen = WeightFormat(wish)
        for field in ("model.linear_format", "model.embedding_format"):
            ledger.note(field, wish, RECIPE, "as the recipe says", KEY)
        return chosen, chosen
    keep = wish == "checkpoint"
    # What dequantised weights become: the type that they are multiplied with.
    floats = WeightFormat(activations)
    probe = _Probe(target, shard, activations)
    linear = _settle_one(
        "model.linear_format", model.linear_formats, keep, floats, probe, target, ledger, False
    )
    stored = (model.embedding_format,)
    embedding = _settle_one(
        "model.embedding_format", stored, keep, floats, probe, target, ledger, True
    )
    return linear, embedding


class _Probe:
    """Asks the kernel tables what would run with a format."""

    def __init__(self, target: Target, shard: Shard, activations: str) -> None:
        self._device = target.kernels
        self._shard = shard
        self._activations = activations

    def computes(self, weight_format: WeightFormat, embedding: bool) -> bool:
        """Some kernel does, the reference included."""
        return all(is_supported(use, self._device) for use in self._uses(weight_format, embedding))

    def computes_fast(self, weight_format: WeightFormat, embedding: bool) -> bool:
        """A kernel of its own computes the products; a look-up alone may be the reference's."""
        used = self._uses(weight_format, embedding)
        products = (use for use in used if use.op == "linear")
        return self.computes(weight_format, embedding) and all(
            is_fast(use, self._device) for use in products
        )

    def _uses(self, weight_format: WeightFormat, embedding: bool) -> tuple[Use, ...]:
        setting = Setting(
            shard=self._shard,
            activations=self._activations,
            kv_dtype=self._activations,
            block_size=16,
            linear_format=weight_format,
            embedding_format=weight_format,
        )
        if not embedding:
            return (linear_use(setting, weight_format, self._shard.input_widths()),)
        look_up = tuple(use for use in uses(setting) if use.op == "embedding")
        if not self._shard.config.tie_embeddings:
            return look_up
        width = (self._shard.config.hidden_size,)
        return (*look_up, linear_use(setting, weight_format, width))


def _settle_one(
    field: str,
    stored: tuple[str, ...],
    keep: bool,
    floats: WeightFormat,
    probe: _Probe,
    target: Target,
    ledger: Ledger,
    embedding: bool,
) -> WeightFormat:
    """`keep`: the recipe says checkpoint, so a slow kernel is no reason to change the format."""
    kinds = " and ".join(stored)
    key = KEY if ledger.asks(KEY) else ""
    source = RECIPE if keep else HARDWARE
    known = {str(member) for member in WeightFormat}
    if len(stored) > 1 or stored[0] not in known:
        why = f"stored as {kinds}, which no kernel takes as it is: {floats} at load"
        ledger.note(field, str(floats), MODEL, why, key)
        return floats
    kept = WeightFormat(stored[0])
    blocks = kept not in (WeightFormat.FLOAT32, WeightFormat.BFLOAT16)
    if target.kind == "cuda" and not keep and kept != floats:
        why = f"stored as {kept}: {floats} at load, the activations' type"
        ledger.note(field, str(floats), HARDWARE, why, key)
        return floats
    if keep and not probe.computes(kept, embedding):
        ledger.fail("TS-K003", KEY, f"no kernel here computes on {kept}", f"write {floats}")
        return floats
    if keep or not blocks or probe.computes_fast(kept, embedding):
        why = f"the format that is stored; a kernel computes on {'its blocks' if blocks else 'it'}"
        ledger.note(field, str(kept), source if keep else MODEL, why, key)
        return kept
    why = f"stored as {kept}, for which this device has no kernel of its own: {floats} at load"
    ledger.note(field, str(floats), HARDWARE, why, key)
    return floats
