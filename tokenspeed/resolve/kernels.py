"""Which kernel runs each op of the model: the first of its table that supports every use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenspeed_kernels import registry
from tokenspeed_kernels.spec import Device, Fact

from tokenspeed.plan import KernelChoice, ModelConfig, Rejection, WeightFormat
from tokenspeed.recipe.words import nearest
from tokenspeed.resolve.ledger import Ledger
from tokenspeed.resolve.memory import Shard


@dataclass(frozen=True, slots=True)
class Use:
    """One op as the model uses it: the needs that one kernel has to meet, all of them."""

    op: str
    variant: str
    needs: tuple[Mapping[str, Fact], ...]

    @property
    def key(self) -> str:
        """As `kernels.overrides` spells it."""
        return f"{self.op}:{self.variant}" if self.variant else self.op


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the needs of all ops are made of."""

    shard: Shard
    activations: str
    kv_dtype: str
    block_size: int
    linear_format: WeightFormat
    embedding_format: WeightFormat


def uses(setting: Setting) -> tuple[Use, ...]:
    """Every op that a dense decoder runs, in the order of a step."""
    config, shard = setting.shard.config, setting.shard
    facts = shared_facts(setting)
    linear = _linear(setting.linear_format, shard.input_widths(), facts)
    output: tuple[Use, ...] = ()
    if config.tie_embeddings and setting.embedding_format != setting.linear_format:
        output = (_linear(setting.embedding_format, (config.hidden_size,), facts),)
    embedding_format = str(setting.embedding_format)
    return (
        _use("embedding", embedding_format, facts | {"weight_format": embedding_format}),
        _use("rms_norm", "", facts),
        _use("add_rms_norm", "", facts),
        linear,
        *output,
        _use("rope_kv_write", "", facts),
        _use("paged_attention", "", facts),
        _use("silu_mul", "", facts),
        _use("apply_penalties", "", facts),
        _use("sample", "", facts),
        _use("log_softmax_topk", "", facts),
    )


def shared_facts(setting: Setting) -> dict[str, Fact]:
    config: ModelConfig = setting.shard.config
    return {
        "activations": setting.activations,
        "kv_dtype": setting.kv_dtype,
        "block_size": setting.block_size,
        "head_dim": config.head_dim,
        "rotary_dim": config.rope.rotary_dim,
        "qk_norm": config.qk_norm,
        "num_heads": setting.shard.heads,
        "num_kv_heads": setting.shard.kv_heads,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
    }


def _use(op: str, variant: str, facts: Mapping[str, Fact]) -> Use:
    """The need is the part of the facts that the op's table asks for."""
    return Use(op, variant, ({field: facts[field] for field in registry.need_fields(op)},))


def _linear(weight_format: WeightFormat, widths: tuple[int, ...], facts: dict[str, Fact]) -> Use:
    variant = str(weight_format)
    needs = tuple(
        _use("linear", variant, {**facts, "weight_format": variant, "in_features": width}).needs[0]
        for width in widths
    )
    return Use("linear", variant, needs)


def choose(use: Use, device: Device, override: str | None) -> KernelChoice:
    """Raises registry.NoKernel when no kernel, or not the one asked for, meets every need."""
    if override is not None:
        selections = [registry.find(use.op, need, device, override) for need in use.needs]
        return _choice(use, selections[0])
    selections = [registry.find(use.op, need, device) for need in use.needs]
    if len({selection.spec.name for selection in selections}) == 1:
        return _choice(use, selections[0])
    # The winners differ: one kernel serves the variant, so take the first that meets all needs.
    rejected: list[tuple[str, str]] = []
    for spec in registry.specs(use.op):
        misses = [miss for need in use.needs if (miss := spec.miss(need, device)) is not None]
        if not misses:
            later = registry.find(use.op, use.needs[0], device, spec.name).rejected
            named = {name for name, _ in rejected}
            rest = tuple(item for item in later if item[0] not in named)
            return _choice(use, registry.Selection(spec, spec.why, (*rejected, *rest)))
        rejected.append((spec.name, misses[0]))
    raise registry.NoKernel(f"no kernel of {use.op} meets every need", tuple(rejected))


def _choice(use: Use, selection: registry.Selection) -> KernelChoice:
    rejected = tuple(Rejection(kernel=name, reason=why) for name, why in selection.rejected)
    return KernelChoice(
        op=use.op,
        variant=use.variant,
        kernel=selection.spec.name,
        reason=selection.reason,
        rejected=rejected,
    )


def is_fast(use: Use, device: Device) -> bool:
    """Whether a kernel other than the reference meets the use."""
    try:
        name = choose(use, device, None).kernel
    except registry.NoKernel:
        return False
    return not any(spec.is_reference for spec in registry.specs(use.op) if spec.name == name)


def is_supported(use: Use, device: Device) -> bool:
    try:
        choose(use, device, None)
    except registry.NoKernel:
        return False
    return True


def linear_use(setting: Setting, weight_format: WeightFormat, widths: tuple[int, ...]) -> Use:
    """A product with weights of another format than the setting's."""
    return _linear(weight_format, widths, shared_facts(setting))


def choose_all(
    wanted: tuple[Use, ...], device: Device, overrides: Mapping[str, str], ledger: Ledger
) -> tuple[KernelChoice, ...]:
    """A choice for every use. What cannot be chosen is a failed constraint in the ledger."""
    _check_keys(wanted, overrides, ledger)
    choices = []
    for use in wanted:
        key = use.key if use.key in overrides else use.op
        override = overrides.get(key)
        try:
            choices.append(choose(use, device, override))
        except registry.NoKernel as error:
            reasons = "; ".join(f"{name} {why}" for name, why in error.rejected)
            path = f"kernels.overrides.{key}" if override else "kernels.overrides"
            hint = "remove the override to have it chosen" if override else _NO_KERNEL_HINT
            message = str(error).splitlines()[0]
            ledger.fail("TS-K001", path, message + (f": {reasons}" if not override else ""), hint)
    return tuple(choices)


_NO_KERNEL_HINT = "choose another quantization or kv.dtype, or a device that has the features"


def _check_keys(wanted: tuple[Use, ...], overrides: Mapping[str, str], ledger: Ledger) -> None:
    known = sorted({use.key for use in wanted} | {use.op for use in wanted})
    for key in overrides:
        if key in known:
            continue
        near = nearest(key, known)
        guess = f"did you mean {near}? " if near else ""
        ledger.fail(
            "TS-K002",
            f"kernels.overrides.{key}",
            "the model runs no such op",
            f"{guess}it runs {', '.join(use.key for use in wanted)}",
        )
