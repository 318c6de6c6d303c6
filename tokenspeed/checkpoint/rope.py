"""Rotary embedding facts, and the context length that they really give (scaled once)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tokenspeed.plan import RopeConfig

_LARGEST_FACTOR = 1e6
_LONGEST = 2**31  # tokens
SCALINGS = ("none", "linear", "dynamic", "llama3", "yarn")


class RopeError(ValueError):
    """The description of the rotary embedding is one that cannot be honoured."""


def rope_config(
    parameters: Mapping[str, Any], *, theta: float, head_dim: int, max_position: int
) -> tuple[RopeConfig, int]:
    """The rope of one model and its usable context in tokens.

    `parameters` has the keys of Hugging Face's `rope_parameters` (or `rope_scaling`, its older
    name); `max_position` is `max_position_embeddings` as written. Raises RopeError.
    """
    scaling = _scaling(parameters)
    rotary_dim = int(head_dim * (_number(parameters, "partial_rotary_factor") or 1.0))
    if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
        raise RopeError(f"a rotary width of {rotary_dim} in heads of {head_dim}")
    if scaling == "none":
        return RopeConfig(theta=theta, rotary_dim=rotary_dim), max_position
    original = _original(scaling, parameters, max_position)
    factor = _factor(parameters, max_position, original)
    config = RopeConfig(
        theta=theta,
        rotary_dim=rotary_dim,
        scaling=scaling,
        factor=factor,
        original_max_position=original,
        low_freq_factor=_needed(parameters, "low_freq_factor") if scaling == "llama3" else None,
        high_freq_factor=_needed(parameters, "high_freq_factor") if scaling == "llama3" else None,
        attention_factor=_attention_factor(parameters, factor) if scaling == "yarn" else None,
        beta_fast=_number(parameters, "beta_fast") or 32.0 if scaling == "yarn" else None,
        beta_slow=_number(parameters, "beta_slow") or 1.0 if scaling == "yarn" else None,
        truncate=parameters.get("truncate") is not False,
    )
    return config, usable_context(scaling, factor, original, max_position)


def usable_context(scaling: str, factor: float, original: int, max_position: int) -> int:
    """Tokens of context after the scaling was applied once.

    A `max_position` above the original length already holds the factor: it is never applied
    twice. Where the two disagree the smaller wins, because a longer context would be wrong text.
    llama3 publishes its scaled length as `max_position`.
    """
    if scaling in ("none", "llama3"):
        return max_position
    scaled = int(original * factor)
    return min(max_position, scaled) if max_position > original else scaled


def _scaling(parameters: Mapping[str, Any]) -> str:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    kind = "none" if kind == "default" else kind
    if kind not in SCALINGS:
        raise RopeError(f"rope scaling {kind!r}; known are {', '.join(SCALINGS)}")
    return str(kind)


def _original(scaling: str, parameters: Mapping[str, Any], max_position: int) -> int:
    # The reference implementation of dynamic scaling counts from max_position whatever else
    # the file says.
    written = _number(parameters, "original_max_position_embeddings")
    if scaling == "dynamic" or not written:
        return max_position
    if not 1 <= written <= _LONGEST:
        raise RopeError(f"an original context of {written:g} tokens")
    return int(written)


def _factor(parameters: Mapping[str, Any], max_position: int, original: int) -> float:
    written = _number(parameters, "factor")
    factor = max_position / original if written is None else written
    if not 1.0 <= factor <= _LARGEST_FACTOR:
        raise RopeError(f"a rope scaling factor of {factor:g}; it must be 1 or more")
    return factor


def _needed(parameters: Mapping[str, Any], key: str) -> float:
    value = _number(parameters, key)
    if value is None:
        raise RopeError(f"rope scaling without {key}")
    return value


def _number(parameters: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None where the key is absent or null."""
    value = parameters.get(key)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise RopeError(f"rope parameter {key} is {value!r}, not a number")
    return float(value)


def _attention_factor(parameters: Mapping[str, Any], factor: float) -> float:
    """What cos and sin are multiplied with (YaRN, arXiv:2309.00071, section 3.4)."""
    written = _number(parameters, "attention_factor")
    if written is not None:
        return written
    weight, weight_all = _number(parameters, "mscale"), _number(parameters, "mscale_all_dim")
    if weight and weight_all:
        return mscale(factor, weight) / mscale(factor, weight_all)
    return mscale(factor, 1.0)


def mscale(factor: float, weight: float) -> float:
    """YaRN's factor of magnitude for a context stretched by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0
