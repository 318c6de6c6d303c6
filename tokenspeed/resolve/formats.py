"""Formats of the weights in memory: the stored ones where a kernel computes on them."""

from __future__ import annotations

from tokenspeed.checkpoint.formats import ALIGNMENT, FLOATS
from tokenspeed.checkpoint.inventory import ATTENTION, DENSE, EXPERTS, HEAD, SHARED, model_tensors
from tokenspeed.plan import WeightFormat
from tokenspeed.recipe.kinds import AUTO
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.device import Target
from tokenspeed.resolve.facts import ModelFacts
from tokenspeed.resolve.kernels import Setting, Use, is_fast, is_supported, linear_use, uses
from tokenspeed.resolve.ledger import HARDWARE, MODEL, RECIPE, Ledger
from tokenspeed.resolve.shard import Formats, Shard

KEY = "quantization.weights"
HEAD_KEY = "quantization.head"


def settle_formats(
    recipe: Recipe,
    model: ModelFacts,
    target: Target,
    shard: Shard,
    activations: str,
    ledger: Ledger,
) -> Formats:
    """The format of each group of matrices; vectors are in the activations' type."""
    formats = _settle_layers(recipe, model, target, shard, activations, ledger)
    head = recipe.quantization.head
    if head is None or head in (AUTO, "checkpoint"):
        return formats
    if shard.config.tie_embeddings:
        message = "the model's LM head is its embedding"
        ledger.fail("TS-K004", HEAD_KEY, message, "remove the key")
        return formats
    kept = WeightFormat(head)
    ledger.note("model.head_format", str(kept), RECIPE, "as the recipe says", HEAD_KEY)
    return Formats(tuple((dict(formats.groups) | {HEAD: kept}).items()), activations)


def _settle_layers(
    recipe: Recipe,
    model: ModelFacts,
    target: Target,
    shard: Shard,
    activations: str,
    ledger: Ledger,
) -> Formats:
    wish = recipe.quantization.weights
    floats = WeightFormat(activations)
    if wish is not None and wish not in (AUTO, "checkpoint"):
        chosen = WeightFormat(wish)
        embedding = chosen if chosen in FLOATS else floats
        for name, kept in (("linear", chosen), ("embedding", embedding)):
            ledger.note(f"model.{name}_format", str(kept), RECIPE, "as the recipe says", KEY)
        return Formats.of(chosen, embedding, activations, head=embedding)
    keep = wish == "checkpoint"
    # What dequantised weights become: the type that they are multiplied with.
    probe = _Probe(target, shard, activations)
    if model.group_formats:
        widened = target.kind == "cpu" and not keep
        return _as_stored(model, floats, activations, probe if widened else None, ledger)
    linear = _settle_one(
        "model.linear_format", model.linear_formats, keep, floats, probe, target, ledger, False
    )
    stored = (model.embedding_format,)
    embedding = _settle_one(
        "model.embedding_format", stored, keep, floats, probe, target, ledger, True
    )
    return Formats.of(linear, embedding, activations)


def _as_stored(
    model: ModelFacts, floats: WeightFormat, activations: str, probe: _Probe | None, ledger: Ledger
) -> Formats:
    """A quantised checkpoint stays as it is; its floats become the activations' type. With a
    `probe` so do the products that no kernel of its own computes; of experts the chosen few are
    dequantised in each step, and all of them keep their size."""
    key = KEY if ledger.asks(KEY) else ""
    stored = {group: WeightFormat(kept) for group, kept in model.group_formats.items()}
    slow = {
        group: kept
        for group, kept in stored.items()
        if probe is not None and group != EXPERTS and not probe.computes_fast(kept, False)
    }
    formats = Formats.of(floats, floats, activations)
    groups = dict(formats.groups) | stored | dict.fromkeys(slow, floats)
    formats = Formats(tuple(groups.items()), activations)
    why = "as the checkpoint stores them"
    # Makers of such checkpoints calibrate inputs too.
    widened = f"{why}; dequantised as they are read, activations stay {activations}"
    first, source = (widened if formats.linear is WeightFormat.NVFP4 else why, MODEL)
    if ATTENTION in slow:
        first = f"stored as {slow[ATTENTION]}, for which this device has no kernel of its own"
        source = HARDWARE
    ledger.note("model.linear_format", str(formats.linear), source, first, key)
    ledger.note("model.embedding_format", str(floats), MODEL, "not quantised", key)
    present = {tensor.group for tensor in model_tensors(model.config)}
    for group, kept in stored.items():
        if group in present and group not in slow and kept != formats.linear:
            field = f"model.{group.replace(' ', '_')}_format"
            said = widened if kept is WeightFormat.NVFP4 else why
            ledger.note(field, str(kept), MODEL, said, key)
    return formats


def require_whole_blocks(shard: Shard, formats: Formats, ledger: Ledger) -> None:
    """A matrix that is cut over ranks is cut between blocks of its format."""
    for whole in model_tensors(shard.config):
        if whole.vector or whole.axis is None:
            continue
        part, aligned = shard.share(whole), ALIGNMENT[formats[whole.group]]
        step = aligned[0] if whole.axis == "out" else aligned[1]
        before, after = (whole.out, part.out) if whole.axis == "out" else (whole.width, part.width)
        if after == before or before % step or after % step == 0:
            continue
        keys = {EXPERTS: "parallel.experts.tp", DENSE: "parallel.dense.tp"}
        key = keys.get(
            whole.group, keys[DENSE] if whole.group == SHARED else "parallel.attention.tp"
        )
        ledger.fail(
            "TS-R024",
            key,
            f"{whole.group}: {before} over {before // after} ranks is {after} each, and "
            f"{formats[whole.group]} comes in blocks of {step}",
            "use fewer ranks there"
            + (", or parallel.experts.ep instead" if whole.group == EXPERTS else ""),
        )
        return


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
            formats=Formats.of(weight_format, weight_format, self._activations),
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
    blocks = kept not in FLOATS
    if target.kind == "cuda" and not keep and kept != floats:
        why = f"stored as {kept}: {floats} at load, the activations' type"
        ledger.note(field, str(floats), HARDWARE, why, key)
        return floats
    if keep and not probe.computes(kept, embedding):
        ledger.fail("TS-K003", KEY, f"no kernel here computes on {kept}", f"write {floats}")
        return floats
    if keep or not blocks or probe.computes_fast(kept, embedding):
        why = f"as stored; a kernel computes on {'its blocks' if blocks else 'it'}"
        ledger.note(field, str(kept), source if keep else MODEL, why, key)
        return kept
    why = f"stored as {kept}, for which this device has no kernel of its own: {floats} at load"
    ledger.note(field, str(floats), HARDWARE, why, key)
    return floats
