"""Scales of a float8 cache that a checkpoint brings along: which layer and side a tensor is of."""

from __future__ import annotations

import re

KEYS, VALUES = "k", "v"
# Beside the projection, or the attention, that it is of; makers differ.
_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:attn\.|([kv])_proj\.)?([kv])_scale")
# Queries and probabilities are not float8 here, so nothing scales them.
_UNUSED = re.compile(r"model\.layers\.\d+\.self_attn\.(?:attn\.|q_proj\.)?(?:q|prob)_scale")


def kv_scale_of(tensor: str) -> tuple[int, str] | None:
    """The layer, and whether the tensor scales its KEYS or VALUES; None where it does neither."""
    found = _SCALE.fullmatch(tensor)
    if found is None or found[2] not in (None, found[3]):
        return None
    return int(found[1]), found[3]


def scales_attention(tensor: str) -> bool:
    """Whether it scales something of an attention, used or not."""
    return kv_scale_of(tensor) is not None or _UNUSED.fullmatch(tensor) is not None
