"""The budget of a rank's memory, and the cache that fits into it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tokenspeed.plan import (
    CacheGroup,
    CachePlan,
    LatentAttention,
    MemoryItem,
    MemoryPlan,
)
from tokenspeed.recipe.kinds import format_size
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.device import Target
from tokenspeed.resolve.ledger import DEFAULT, HARDWARE, MODEL, RECIPE, Ledger
from tokenspeed.resolve.limits import Context
from tokenspeed.resolve.memory import cache_groups, paged_token_bytes
from tokenspeed.resolve.misfit import FixedItems, Misfit, Sizes
from tokenspeed.resolve.shard import Shard

# Share of the device's memory that a rank may use by default.
BUDGET_PERCENT = {"cpu": 80, "cuda": 90, "rocm": 90}
# Share of the host's memory that the cache takes by default: other programs live there too.
HOST_CACHE_PERCENT = 12.5
# Part of a GPU's budget that is left free by default, for what fragments.
RESERVE_PERCENT = 2
# The sink and one block that holds tokens.
LEAST_BLOCKS = 2
# Prefixes with recurrent layers whose states are kept, at least.
LEAST_SNAPSHOTS = 8


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a block is, before it is known how many there are."""

    dtype: str
    layout: str
    block_size: int
    groups: tuple[CacheGroup, ...]
    prefix_cache: bool

    @property
    def bytes_per_block(self) -> int:
        return self.block_size * paged_token_bytes(self.groups)

    @property
    def request_bytes(self) -> int:
        """What one request keeps however short it is."""
        return sum(group.bytes_per_request for group in self.groups)

    def request_slots(self, max_running: int) -> int:
        """Requests whose windows and states have a place. A prefix can be gone on from only where
        a state was kept, so kept prefixes have slots too."""
        if not self.request_bytes:
            return 0
        states = any(group.kind == "state" for group in self.groups)
        kept = max(LEAST_SNAPSHOTS, max_running // 4) if states and self.prefix_cache else 0
        return max_running + kept

    def request_items(self, max_running: int) -> tuple[MemoryItem, ...]:
        """The windows and the states, as lines of the budget."""
        slots, items = self.request_slots(max_running), []
        for name, kind in (("window cache", "window"), ("recurrent state", "state")):
            found = [group for group in self.groups if group.kind == kind]
            each = sum(group.bytes_per_request for group in found)
            if each:
                layers = sum(group.layers for group in found)
                note = f"{slots} slots of {format_size(each)}, {layers} layers"
                items.append(MemoryItem(name=name, bytes=slots * each, note=note))
        return tuple(items)

    # What a request needs, as the scheduler judges it (SchedulerConfig.blocks_of and
    # max_request_tokens). Planning works where the core is not built, so it is said here once
    # more; tests/scheduler/test_limits.py holds the two to each other.

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def tokens_in(self, num_blocks: int) -> int:
        """The longest request: the sink holds nothing."""
        return (num_blocks - 1) * self.block_size


def settle_geometry(
    recipe: Recipe, target: Target, shard: Shard, activations: str, ledger: Ledger
) -> Geometry:
    on_cpu = target.kind == "cpu"
    dtype = ledger.settle(
        "cache.dtype",
        recipe.kv.dtype,
        activations,
        HARDWARE,
        "the type of the activations: nothing is rounded",
        "kv.dtype",
    )
    block_size = ledger.settle(
        "cache.block_size",
        recipe.kv.block_size,
        16 if on_cpu else 64,
        HARDWARE,
        "small blocks share more of a prefix, and cost nothing on a CPU"
        if on_cpu
        else "one tile of the attention kernels",
        "kv.block_size",
    )
    prefix_cache = ledger.settle(
        "cache.prefix_cache",
        recipe.kv.prefix_cache,
        True,
        DEFAULT,
        "later turns of a conversation reuse its cache",
        "kv.prefix_cache",
    )
    layout = _settle_layout(shard, dtype, ledger)
    groups = cache_groups(shard, dtype, layout, block_size)
    return Geometry(dtype, layout, block_size, groups, prefix_cache)


def _settle_layout(shard: Shard, dtype: str, ledger: Ledger) -> str:
    mixers = [layer.mixer for layer, _ in shard.config.kinds()]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    layout, why = "split", "keys and values of each head"
    if latent:
        layout, why = "latent", "one latent vector per token for all heads, on every rank"
    if latent and dtype == "fp8":
        layout = "latent_scaled"
        why = "a scale per token; the rotated part is not quantised"
    ledger.note("cache.layout", layout, MODEL, why)
    return layout


def settle_memory(
    recipe: Recipe,
    target: Target,
    geometry: Geometry,
    context: Context,
    sizes: Sizes,
    fixed: FixedItems,
    ledger: Ledger,
) -> tuple[CachePlan, MemoryPlan, int]:
    """(cache, memory, context that the cache holds). What does not fit is a failed constraint."""
    budget = _settle_budget(recipe, target, ledger)
    room = budget - sum(item.bytes for item in fixed(sizes))
    if room < LEAST_BLOCKS * geometry.bytes_per_block:
        _misfit(recipe, target, geometry, context, budget, sizes, fixed).fail(ledger)
        num_blocks, final = LEAST_BLOCKS, context.limit
        # A cache that is not there holds no context either: said once is enough. One that would
        # not hold it with all the room there is will meet that next.
        if (own := _own_blocks(recipe, geometry)) is not None:
            _context_that_fits(geometry, context, max(LEAST_BLOCKS, own), ledger)
    else:
        num_blocks = _settle_blocks(recipe, target, geometry, context, sizes.running, room, ledger)
        final = _context_that_fits(geometry, context, num_blocks, ledger)
    cache = CachePlan(
        dtype=geometry.dtype,
        block_size=geometry.block_size,
        num_blocks=num_blocks,
        bytes_per_block=geometry.bytes_per_block,
        prefix_cache=geometry.prefix_cache,
        layout=geometry.layout,
        groups=geometry.groups,
        request_slots=geometry.request_slots(sizes.running),
    )
    items = fixed(replace(sizes, context=final))
    tokens = geometry.tokens_in(num_blocks)
    kv = MemoryItem(
        name="kv cache",
        bytes=num_blocks * geometry.bytes_per_block,
        note=f"{num_blocks} blocks of {geometry.block_size}: {tokens} tokens, {geometry.dtype}",
    )
    free = budget - kv.bytes - sum(item.bytes for item in items)
    headroom = MemoryItem(name="headroom", bytes=max(0, free), note="left free")
    memory = MemoryPlan(
        device_bytes=target.memory_bytes,
        budget_bytes=budget,
        items=(items[0], kv, *items[1:], headroom),
    )
    return cache, memory, final


def _settle_budget(recipe: Recipe, target: Target, ledger: Ledger) -> int:
    key, percent = "limits.memory", BUDGET_PERCENT[target.kind]
    left = "the system and other programs" if target.kind == "cpu" else "the driver and fragments"
    budget = ledger.settle(
        "memory.budget_bytes",
        recipe.limits.memory,
        target.memory_bytes * percent // 100,
        HARDWARE,
        f"{percent} % of {format_size(target.memory_bytes)}; the rest is left to {left}",
        key,
    )
    if budget > target.memory_bytes:
        ledger.fail(
            "TS-M002",
            key,
            f"{format_size(budget)}, and the device has {format_size(target.memory_bytes)}",
            f"write at most {whole_size(target.memory_bytes)}",
        )
    return budget


def _settle_blocks(
    recipe: Recipe,
    target: Target,
    geometry: Geometry,
    context: Context,
    max_running: int,
    room: int,
    ledger: Ledger,
) -> int:
    field, per_block = "cache.num_blocks", geometry.bytes_per_block
    most = room // per_block
    if recipe.kv.blocks is not None:
        ledger.note(field, recipe.kv.blocks, RECIPE, "as the recipe says", "kv.blocks")
        if recipe.kv.blocks > most:
            _fail_too_large("kv.blocks", recipe.kv.blocks * per_block, room, str(most), ledger)
        return recipe.kv.blocks
    if isinstance(recipe.kv.size, int):
        blocks = recipe.kv.size // per_block
        why = f"{format_size(recipe.kv.size)} in blocks of {format_size(per_block)}"
        ledger.note(field, blocks, RECIPE, why, "kv.size")
        if blocks < LEAST_BLOCKS:
            ledger.fail(
                "TS-M003",
                "kv.size",
                f"{format_size(recipe.kv.size)} holds {blocks} blocks of {format_size(per_block)}, "
                f"{LEAST_BLOCKS} are the least",
                f"write at least {LEAST_BLOCKS * per_block}B",
            )
        elif recipe.kv.size > room:
            _fail_too_large("kv.size", recipe.kv.size, room, whole_size(room), ledger)
        return max(LEAST_BLOCKS, blocks)
    if target.kind == "cpu":
        share = int(target.memory_bytes * HOST_CACHE_PERCENT) // 100
        offered = min(most, share // per_block)
        why = f"{HOST_CACHE_PERCENT:g} % of the host's memory"
    else:
        offered = int(room * (100 - RESERVE_PERCENT)) // 100 // per_block
        why = f"what the other items leave of the budget, minus {RESERVE_PERCENT} %"
    useful = max_running * geometry.blocks_for(context.limit) + 1
    if useful < offered:
        offered, why = (
            useful,
            f"{max_running} requests of {context.limit} tokens, and a block for padding",
        )
    blocks = max(LEAST_BLOCKS, offered)
    ledger.note(field, blocks, HARDWARE, why, "kv.size" if recipe.kv.size else "")
    return blocks


def _own_blocks(recipe: Recipe, geometry: Geometry) -> int | None:
    """What the recipe gives the cache however much room there is; None where it leaves that."""
    if recipe.kv.blocks is not None:
        return recipe.kv.blocks
    if isinstance(recipe.kv.size, int):
        return recipe.kv.size // geometry.bytes_per_block
    return None


def _context_that_fits(
    geometry: Geometry, context: Context, num_blocks: int, ledger: Ledger
) -> int:
    held = geometry.tokens_in(num_blocks)
    if held >= context.limit:
        return context.limit
    if context.asked:
        needed = (geometry.blocks_for(context.limit) + 1) * geometry.bytes_per_block
        ledger.fail(
            "TS-M004",
            "model.max_context",
            f"one request of {context.limit} tokens, and the cache holds {held}",
            f"write at most {held}, or kv.size: {whole_size(needed, up=True)}",
        )
        return context.limit
    return held


def _misfit(
    recipe: Recipe,
    target: Target,
    geometry: Geometry,
    context: Context,
    budget: int,
    sizes: Sizes,
    fixed: FixedItems,
) -> Misfit:
    own_budget = isinstance(recipe.limits.memory, int)
    blocks, size = LEAST_BLOCKS, recipe.kv.size
    if context.asked:
        blocks = max(blocks, geometry.blocks_for(context.limit) + 1)
    own_size = recipe.kv.blocks is not None or isinstance(size, int)
    blocks = max(blocks, recipe.kv.blocks or 0)
    least = max(blocks * geometry.bytes_per_block, size if isinstance(size, int) else 0)

    def device_bytes_for(needed: int) -> int:
        """Turned round from how the budget and the cache's share are taken."""
        shared = 0
        if not own_size and blocks > LEAST_BLOCKS and target.kind == "cpu":
            shared = _above(least, HOST_CACHE_PERCENT)
        elif not own_size and blocks > LEAST_BLOCKS:
            needed += _above(least, 100 - RESERVE_PERCENT) - least
        return max(shared, needed if own_budget else _above(needed, BUDGET_PERCENT[target.kind]))

    return Misfit(
        budget=budget,
        device_bytes=target.memory_bytes,
        own_budget=own_budget,
        cache_bytes=least,
        sizes=sizes,
        fixed=fixed,
        device_bytes_for=device_bytes_for,
    )


def _above(share: int, percent: float) -> int:
    """The least whole of which `share` is this many percent (of a percentage in halves)."""
    return -(-share * 200 // int(2 * percent)) + 1


def _fail_too_large(key: str, wanted: int, room: int, fits: str, ledger: Ledger) -> None:
    message = f"{format_size(wanted)} of cache, and the other items leave {format_size(room)}"
    ledger.fail("TS-M003", key, message, f"write at most {fits}")


def whole_size(count: int, up: bool = False) -> str:
    """Bytes as a size that a recipe may say, in whole MiB, rounded down (or up)."""
    mebibytes = -(-count // 2**20) if up else count // 2**20
    return f"{mebibytes}MiB"
