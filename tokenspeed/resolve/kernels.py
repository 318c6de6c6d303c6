"""Which kernel runs each op of the model: the first of its table that supports every use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenspeed_kernels import registry
from tokenspeed_kernels.spec import Device, Fact

from tokenspeed.checkpoint.inventory import DENSE, EXPERTS, HEAD, ROUTER, SHARED
from tokenspeed.plan import (
    Attention,
    ChannelDelta,
    Dense,
    GatedDeltaNet,
    KernelChoice,
    LatentAttention,
    Moe,
    Rejection,
    WeightFormat,
)
from tokenspeed.recipe.words import nearest
from tokenspeed.resolve.ledger import Ledger
from tokenspeed.resolve.shard import LINEAR_GROUPS, Formats, Shard

# Facts of a use that kernels may not know of yet, with what they are where nothing is special.
PLAIN: Mapping[str, Fact] = {
    "window": 0, "sinks": False, "gated": False, "clamp": False, "qk_norm_over": "head",
    "expert_bias": False, "latent": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """One op as the model uses it: the needs that one kernel has to meet, all of them.

    `unstated` are facts that matter here and that the op's table does not ask for: no row of it
    can claim to support them.
    """

    op: str
    variant: str
    needs: tuple[Mapping[str, Fact], ...]
    unstated: tuple[str, ...] = ()

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
    formats: Formats
    kv_layout: str = "split"


def uses(setting: Setting) -> tuple[Use, ...]:
    """Every op that the model runs, in the order of a step."""
    config, formats = setting.shard.config, setting.formats
    facts = shared_facts(setting)
    embedding = str(formats.embedding)
    found = [
        _use("embedding", embedding, [facts | {"weight_format": embedding}]),
        _use("rms_norm", "", [facts]),
        _use("add_rms_norm", "", [facts]),
        *_products(setting, facts),
    ]
    mixers = tuple(dict.fromkeys(layer.mixer for layer, _ in config.kinds()))
    tp = setting.shard.parallel.attention_tp
    grouped = [facts | _attention_facts(mixer, tp) for mixer in setting.shard.attentions()]
    if grouped:
        if config.rope is not None:
            found.append(_use("rope_kv_write", "", grouped, ("qk_norm_over",)))
        found.append(_use("paged_attention", "", grouped, ("window", "sinks")))
    latent = [mixer for mixer in mixers if isinstance(mixer, LatentAttention)]
    if latent:
        needs = [facts | _latent_facts(mixer, tp) for mixer in latent]
        ops = ("latent_kv_write", "latent_attention", "latent_extend")
        found += [_use(op, "", needs) for op in ops]
    by_mixer = {
        GatedDeltaNet: ("causal_conv", "gated_delta_net"),
        ChannelDelta: ("causal_conv", "channel_delta_net"),
    }
    special = (op for mixer in mixers for op in by_mixer.get(type(mixer), ()))
    found += [_use(op, "", [facts]) for op in dict.fromkeys(special)]
    feeds = tuple(dict.fromkeys(layer.feed_forward for layer, _ in config.kinds()))
    moes = [feed for feed in feeds if isinstance(feed, Moe)]
    if moes:
        experts = str(formats[EXPERTS])
        needs = [facts | {"weight_format": experts} | _moe_facts(feed) for feed in moes]
        found += [_use("route", "", needs), _use("experts", experts, needs)]
    if any(isinstance(feed, Dense) or feed.shared_inner for feed in feeds):
        found.append(_use("silu_mul" if config.activation == "silu" else config.activation, "",
                          [facts]))  # fmt: skip
        if config.activation == "silu":
            found += _gated_products(setting, facts)
    found += [_use(op, "", [facts]) for op in ("sample", "log_softmax_topk")]
    return tuple(found)


def _products(setting: Setting, facts: dict[str, Fact]) -> tuple[Use, ...]:
    """One use per format of the products, with every input axis that it meets."""
    shard, formats, config = setting.shard, setting.formats, setting.shard.config
    widths: dict[WeightFormat, set[int]] = {}
    for tensor in shard.tensors():
        if not tensor.vector and tensor.group in (*LINEAR_GROUPS, ROUTER, HEAD):
            widths.setdefault(formats[tensor.group], set()).add(tensor.width)
    if config.tie_embeddings:
        widths.setdefault(formats.embedding, set()).add(config.hidden_size)
    return tuple(_linear(kept, tuple(sorted(found)), facts) for kept, found in widths.items())


def _gated_products(setting: Setting, facts: dict[str, Fact]) -> tuple[Use, ...]:
    """The first product of dense and shared feed-forwards, with its activation."""
    width = setting.shard.config.hidden_size
    present = {tensor.group for tensor in setting.shard.tensors()}
    kept = dict.fromkeys(setting.formats[group] for group in (DENSE, SHARED) if group in present)
    return tuple(
        _use("linear_silu_mul", str(one),
             [{**facts, "weight_format": str(one), "in_features": width}])
        for one in kept
    )  # fmt: skip


def shared_facts(setting: Setting) -> dict[str, Fact]:
    """Facts of the model as a whole. Those of an attention are added to them."""
    config, shard = setting.shard.config, setting.shard
    facts: dict[str, Fact] = {
        "activations": setting.activations,
        "kv_dtype": setting.kv_dtype,
        "kv_layout": setting.kv_layout,
        "block_size": setting.block_size,
        "rotary_dim": config.rope.rotary_dim if config.rope is not None else 0,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_ranks": shard.parallel.attention_tp,
    }
    for mixer in shard.attentions()[:1]:
        facts |= _attention_facts(mixer, shard.parallel.attention_tp)
    return facts


def _attention_facts(mixer: Attention, tp: int) -> dict[str, Fact]:
    return {
        "head_dim": mixer.head_dim,
        "qk_norm": mixer.qk_norm != "none",
        "qk_norm_over": "all" if mixer.qk_norm == "all" else "head",
        "num_heads": mixer.num_heads // tp,
        "num_kv_heads": max(1, mixer.num_kv_heads // tp),
        "window": mixer.window or 0,
        "sinks": mixer.sinks,
        "gated": mixer.gated,
    }


def _latent_facts(mixer: LatentAttention, tp: int) -> dict[str, Fact]:
    return {
        "kv_rank": mixer.kv_rank,
        "nope_dim": mixer.nope_dim,
        "rope_dim": mixer.rope_dim,
        "value_dim": mixer.value_dim,
        "num_heads": mixer.num_heads // tp,
    }


def _moe_facts(moe: Moe) -> dict[str, Fact]:
    return {
        "experts": moe.experts,
        "top_k": moe.top_k,
        "scoring": moe.scoring,
        "inner": moe.inner,
        "clamp": moe.clamp is not None,
        "groups": moe.groups,
        "expert_bias": moe.expert_bias,
        "latent": moe.latent is not None,
    }


def _use(
    op: str, variant: str, facts: Sequence[Mapping[str, Fact]], special: tuple[str, ...] = ()
) -> Use:
    """The needs are the parts of the facts that the op's table asks for; `special` facts that
    matter in any of them and that it does not ask for stay unstated."""
    if op not in registry.ops():
        return Use(op, variant, ())
    fields = registry.need_fields(op)
    needs = tuple({field: one[field] for field in fields} for one in facts)
    unstated = tuple(
        fact
        for fact in special
        if fact not in fields and any(one.get(fact, PLAIN[fact]) != PLAIN[fact] for one in facts)
    )
    return Use(op, variant, tuple({str(need): need for need in needs}.values()), unstated)


def _linear(weight_format: WeightFormat, widths: tuple[int, ...], facts: dict[str, Fact]) -> Use:
    variant = str(weight_format)
    needs = [{**facts, "weight_format": variant, "in_features": width} for width in widths]
    return _use("linear", variant, needs)


def choose(
    use: Use, device: Device, override: str | None, *, ordered: bool = False
) -> KernelChoice:
    """Raises registry.NoKernel when no kernel, or not the one asked for, meets every need.
    `ordered`: only kernels whose sums keep one order do."""
    if not use.needs:
        raise registry.NoKernel(f"this build has no op {use.op}")
    if use.unstated:
        lacking = f"does not state {', '.join(use.unstated)}"
        losers = tuple((spec.name, lacking) for spec in registry.specs(use.op))
        raise registry.NoKernel(f"no kernel of {use.op} states {', '.join(use.unstated)}", losers)
    if override is not None:
        selections = [
            registry.find(use.op, need, device, override, ordered=ordered) for need in use.needs
        ]
        return _choice(use, selections[0])
    selections = [registry.find(use.op, need, device, ordered=ordered) for need in use.needs]
    if len({selection.spec.name for selection in selections}) == 1:
        return _choice(use, selections[0])
    # The winners differ: one kernel serves the variant, so take the first that meets all needs.
    rejected: list[tuple[str, str]] = []
    for spec in registry.specs(use.op):
        misses = [
            miss
            for need in use.needs
            if (miss := registry.why_not(spec, need, device, ordered)) is not None
        ]
        if not misses:
            later = registry.find(use.op, use.needs[0], device, spec.name, ordered=ordered).rejected
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


def is_fast(use: Use, device: Device, *, ordered: bool = False) -> bool:
    """Whether a kernel other than the reference meets the use."""
    try:
        name = choose(use, device, None, ordered=ordered).kernel
    except registry.NoKernel:
        return False
    return not any(spec.is_reference for spec in registry.specs(use.op) if spec.name == name)


def is_supported(use: Use, device: Device) -> bool:
    try:
        choose(use, device, None)
    except registry.NoKernel:
        return False
    return True


def is_optional(use: Use) -> bool:
    """Whether other ops of the model compute the same."""
    return use.op in registry.ops() and registry.fuses(use.op)


def linear_use(setting: Setting, weight_format: WeightFormat, widths: tuple[int, ...]) -> Use:
    """A product with weights of another format than the setting's."""
    return _linear(weight_format, widths, shared_facts(setting))


def choose_all(
    wanted: tuple[Use, ...],
    device: Device,
    overrides: Mapping[str, str],
    ledger: Ledger,
    *,
    ordered: bool = False,
) -> tuple[KernelChoice, ...]:
    """A choice for every use. Where no kernel fits, that is an unmet need; an override that does
    not fit is a failed constraint, and so is a use that nothing but `ordered` stands against."""
    _check_keys(wanted, overrides, ledger)
    choices: list[KernelChoice] = []
    lacking: list[str] = []
    disordered: list[str] = []
    for use in wanted:
        key = use.key if use.key in overrides else use.op
        override = overrides.get(key)
        if override is None and is_optional(use) and not is_fast(use, device, ordered=ordered):
            continue
        try:
            choices.append(choose(use, device, override, ordered=ordered))
        except registry.NoKernel as error:
            message = str(error).splitlines()[0]
            if override is not None:
                path, hint = f"kernels.overrides.{key}", "remove the override to have it chosen"
                ledger.fail("TS-K001", path, message, hint)
                continue
            (disordered if ordered and is_supported(use, device) else lacking).append(use.key)
            losers = tuple(Rejection(kernel=name, reason=why) for name, why in error.rejected)
            choices.append(
                KernelChoice(
                    op=use.op, variant=use.variant, kernel="", reason=message, rejected=losers
                )
            )
    if disordered:
        ledger.fail(
            "TS-K005",
            "advanced.deterministic",
            f"on {device.arch} no kernel of {', '.join(disordered)} keeps the order of its sums",
            "take it out; see `tokenspeed explain TS-K005` for what has them",
        )
    if lacking:
        ledger.need(f"kernels for {device.arch}", f"this build has none of {', '.join(lacking)}")
    return tuple(choices)


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
            "the model uses no such op",
            f"{guess}it runs {', '.join(use.key for use in wanted)}",
        )
