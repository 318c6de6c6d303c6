"""Whether only kernels are taken whose sums keep one order, and the memory that these want."""

from __future__ import annotations

from tokenspeed.plan import MemoryItem
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.ledger import RECIPE, Ledger
from tokenspeed.resolve.shard import DTYPE_BYTES, Shard

KEY = "advanced.deterministic"
# Programs of the attention kernel on the largest device, and the parts of a row that each may
# leave to be folded: as `paged_attention_ordered` has them.
_PROGRAMS, _PARTS = 132, 128
# Of a split product.
_SPLITS = 2


def settle_ordered(recipe: Recipe, ledger: Ledger) -> bool:
    ordered = recipe.advanced.deterministic or False
    if ordered:
        ledger.note(
            "kernels", "ordered", RECIPE, "sums in an order that does not depend on the batch", KEY
        )
    return ordered


def ordered_item(ordered: bool, shard: Shard, step_tokens: int) -> MemoryItem:
    """Float32 parts of attention, and of products for all tokens of a step."""
    attentions = shard.attentions()
    if not ordered or not attentions:
        return MemoryItem(name="ordered sums", bytes=0, note="")
    tp, width = shard.parallel.attention_tp, shard.config.hidden_size
    group = max(one.num_heads // one.num_kv_heads for one in attentions)
    dims = max(one.head_dim for one in attentions)
    widest = max((one.num_heads // tp + 2 * one.num_kv_heads // tp) * dims for one in attentions)
    values = _PROGRAMS * _PARTS * group * (dims + 2) + _SPLITS * step_tokens * max(width, widest)
    return MemoryItem(
        name="ordered sums",
        bytes=values * DTYPE_BYTES["float32"],
        note=f"parts of attention and of products of {step_tokens} tokens",
    )
