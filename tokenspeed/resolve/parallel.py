"""The groups of ranks: attention, dense feed-forwards and experts choose theirs independently."""

from __future__ import annotations

from tokenspeed.plan import (
    Attention,
    Dense,
    GatedDeltaNet,
    ModelConfig,
    Moe,
    ParallelPlan,
)
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.device import Target
from tokenspeed.resolve.facts import BuildFacts
from tokenspeed.resolve.ledger import DEFAULT, MODEL, Ledger

ATTENTION_KEY, DENSE_KEY = "parallel.attention.tp", "parallel.dense.tp"
EXPERT_TP_KEY, EXPERT_EP_KEY = "parallel.experts.tp", "parallel.experts.ep"
# The unmet need of a machine with fewer devices than the plan has ranks.
DEVICES = "devices"
# Below this width an expert's share is no whole tile of a product any more.
TILE = 128


def settle_parallel(
    recipe: Recipe, config: ModelConfig, target: Target, build: BuildFacts, ledger: Ledger
) -> ParallelPlan:
    """The groups. What this build or machine has too few ranks for is an unmet need."""
    attention = recipe.parallel.attention
    tp = ledger.settle(
        "parallel.attention_tp",
        attention.tp if attention else None,
        1,
        DEFAULT,
        "one rank per replica unless the recipe says otherwise",
        ATTENTION_KEY,
    )
    dp = ledger.settle(
        "parallel.attention_dp",
        attention.dp if attention else None,
        1,
        DEFAULT,
        "one replica",
        "parallel.attention.dp",
    )
    world = tp * dp
    dense_tp = _settle_dense(recipe, tp, world, ledger)
    _require_even(recipe, config, tp, dense_tp, ledger)
    expert_tp, expert_ep = _settle_experts(recipe, config, tp, world, ledger)
    if world > build.max_ranks:
        ledger.need(
            "parallel groups",
            f"tp {tp} x dp {dp} are {world} ranks; this build runs {build.max_ranks}",
        )
    if world > target.available:
        ledger.need(DEVICES, f"{world} x {target.name}; the machine has {target.available}")
    return ParallelPlan(
        attention_tp=tp,
        attention_dp=dp,
        world_size=world,
        dense_tp=dense_tp,
        expert_tp=expert_tp,
        expert_ep=expert_ep,
    )


def _settle_dense(recipe: Recipe, tp: int, world: int, ledger: Ledger) -> int:
    wish = recipe.parallel.dense
    dense = ledger.settle(
        "parallel.dense_tp",
        wish.tp if wish else None,
        tp,
        DEFAULT,
        "as attention: no tokens move between ranks",
        DENSE_KEY,
    )
    if world % dense:
        ledger.fail(
            "TS-R023",
            DENSE_KEY,
            f"{world} ranks are no whole groups of {dense}",
            f"write one of {_listed(_divisors(world))}",
        )
    return dense


def _require_even(recipe: Recipe, config: ModelConfig, tp: int, dense: int, ledger: Ledger) -> None:
    """Heads and inner widths go into whole shares."""
    own = recipe.parallel.dense is not None and recipe.parallel.dense.tp is not None
    inner = _inner_widths(config)
    fits = [n for n in _candidates(config) if heads_split(config, n)]
    if not own:
        fits = [n for n in fits if all(width % n == 0 for width in inner)]
    if tp not in fits:
        widths = f" and an inner width of {_listed(inner)}" if inner and not own else ""
        ledger.fail(
            "TS-R022",
            ATTENTION_KEY,
            f"{_heads_text(config)}{widths} do not split over {tp} ranks",
            f"write one of {_listed(fits)}",
        )
    elif any(width % dense for width in inner):
        ledger.fail(
            "TS-R022",
            DENSE_KEY,
            f"an inner width of {_listed(inner)} does not split over {dense} ranks",
            f"write {tp}, as attention",
        )


def _candidates(config: ModelConfig) -> range:
    return range(1, max(layer.mixer.num_heads for layer, _ in config.kinds()
                        if not isinstance(layer.mixer, GatedDeltaNet)) + 1)  # fmt: skip


def heads_split(config: ModelConfig, tp: int) -> bool:
    """Whether every mixer's heads go into `tp` equal shares; kv heads may be repeated instead."""
    for layer, _ in config.kinds():
        mixer = layer.mixer
        if isinstance(mixer, GatedDeltaNet):
            if mixer.key_heads % tp or mixer.value_heads % tp:
                return False
        elif mixer.num_heads % tp:
            return False
        if isinstance(mixer, Attention) and mixer.num_kv_heads % tp and tp % mixer.num_kv_heads:
            return False
    return True


def _heads_text(config: ModelConfig) -> str:
    texts = []
    for layer, _ in config.kinds():
        mixer = layer.mixer
        if isinstance(mixer, Attention):
            texts.append(f"{mixer.num_heads} query heads, {mixer.num_kv_heads} kv heads")
        elif isinstance(mixer, GatedDeltaNet):
            texts.append(f"{mixer.key_heads} key heads, {mixer.value_heads} value heads")
        else:
            texts.append(f"{mixer.num_heads} heads")
    return ", ".join(dict.fromkeys(texts))


def _inner_widths(config: ModelConfig) -> tuple[int, ...]:
    """Inner widths of what every token passes."""
    feeds = [layer.feed_forward for layer, _ in config.kinds()]
    widths = [feed.inner if isinstance(feed, Dense) else feed.shared_inner for feed in feeds]
    return tuple(sorted({width for width in widths if width}))


def _settle_experts(
    recipe: Recipe, config: ModelConfig, tp: int, world: int, ledger: Ledger
) -> tuple[int, int]:
    """(tp, ep) of the experts; together they are all ranks. (1, 1) where there are none."""
    feeds = [layer.feed_forward for layer, _ in config.kinds()]
    found = next((feed for feed in feeds if isinstance(feed, Moe)), None)
    wish = recipe.parallel.experts
    wished_tp, wished_ep = (wish.tp, wish.ep) if wish else (None, None)
    if found is None:
        for key, value in ((EXPERT_TP_KEY, wished_tp), (EXPERT_EP_KEY, wished_ep)):
            if value is not None:
                ledger.fail("TS-R023", key, "the model has no experts", "remove the key")
        return 1, 1
    ep, why = _usual_ep(found, tp, world, wished_tp)
    ep = ledger.settle("parallel.expert_ep", wished_ep, ep, MODEL, why, EXPERT_EP_KEY)
    usual_tp = max(1, world // ep)
    reason = "the ranks left by expert_ep"
    expert_tp = ledger.settle(
        "parallel.expert_tp", wished_tp, usual_tp, DEFAULT, reason, EXPERT_TP_KEY
    )
    if expert_tp * ep != world:
        ledger.fail(
            "TS-R023",
            EXPERT_EP_KEY if wished_ep is not None else EXPERT_TP_KEY,
            f"experts over tp {expert_tp} x ep {ep} are {expert_tp * ep} ranks; attention has "
            f"{world}",
            f"write parallel.experts: {{tp: 1, ep: {world}}}, or leave one of them out",
        )
    elif found.inner % expert_tp or found.experts % ep:
        ledger.fail(
            "TS-R022",
            EXPERT_EP_KEY if found.experts % ep else EXPERT_TP_KEY,
            f"{found.experts} experts of an inner width of {found.inner} do not split over "
            f"tp {expert_tp} x ep {ep}",
            f"write an ep that divides {found.experts}, with a tp that divides {found.inner}",
        )
    return expert_tp, ep


def settle_expert_load(recipe: Recipe, config: ModelConfig, ledger: Ledger) -> bool:
    """Whether the tokens of each expert are counted."""
    key, asked = "advanced.expert_load", bool(recipe.advanced.expert_load)
    if not asked:
        return False
    if not any(isinstance(layer.feed_forward, Moe) for layer, _ in config.kinds()):
        ledger.fail("TS-R023", key, "the model has no experts", "remove the key")
    return ledger.settle("expert_load", asked, asked, DEFAULT, "", key)


def _usual_ep(moe: Moe, tp: int, world: int, wished_tp: int | None) -> tuple[int, str]:
    if wished_tp is not None:
        return max(1, world // wished_tp), "the ranks left by expert_tp"
    if world == 1:
        return 1, "one rank holds all experts"
    tiles = moe.inner % (world * TILE) == 0
    if tp == world and tiles:
        return 1, "each expert is split over all ranks: the load is even"
    if moe.experts % world == 0:
        why = "replicas exchange tokens, not weights" if tp < world else "slices would be too small"
        return world, f"whole experts on each rank: {why}"
    return 1, f"{moe.experts} experts do not go into {world} equal parts"


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def _listed(numbers: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, numbers))
