"""In which format each group of matrices is stored, from a config.json's `quantization_config`.

Only the format is read; what else the makers write there says how to load, not how large.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenspeed.checkpoint.families import FAMILIES
from tokenspeed.checkpoint.inventory import ATTENTION, DENSE, EXPERTS, SHARED
from tokenspeed.checkpoint.scaled import NVFP4_GROUP
from tokenspeed.errors import CheckpointError, Problem, Where

# Groups whose matrices a quantised checkpoint quantises unless it says otherwise. Embedding,
# router and output matrix stay floats in all of them.
QUANTISED = (ATTENTION, DENSE, SHARED, EXPERTS)
# What the name of a module that is left alone begins with, for each group.
_NAMES = {
    ATTENTION: r"self_attn|linear_attn$|attn$",
    DENSE: r"mlp($|\.\(gate|\.(gate|up|gate_up|down)_proj)",
    SHARED: r"(mlp|block_sparse_moe)?\.?shared_experts?($|\.\w+_proj)",
    EXPERTS: r"(mlp|block_sparse_moe)?\.?experts",
}
_FLOATS = {"float32": "float32", "float16": "float16", "bfloat16": "bfloat16"}


def float_format(config: Mapping[str, Any]) -> str:
    """The type of what is not quantised."""
    inner = _text(config)
    for place in (inner, config):
        for key in ("dtype", "torch_dtype"):
            if (written := str(place.get(key))) in _FLOATS:
                return written
    return "bfloat16"


def group_formats(config: Mapping[str, Any], file: str = "config.json") -> dict[str, str]:
    """group -> format, for the groups that are quantised; {} for a checkpoint in floats.

    Raises CheckpointError for a method or a width that is unknown.
    """
    found = config.get("quantization_config") or _text(config).get("quantization_config")
    if not found:
        return {}
    if not isinstance(found, Mapping):
        raise _unknown(file, f"quantization_config is {found!r}, not a mapping")
    stored = _format(found, file)
    if found.get("quant_method") == "mxfp4":
        return {EXPERTS: stored}
    alone = _left_alone(found)
    return {group: stored for group in QUANTISED if group not in alone}


def refuse_unread(config: Mapping[str, Any], file: str) -> None:
    """Raises CheckpointError for files that hold numbers in an order that nothing here reads."""
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, Mapping) else None
    if method in ("awq", "gptq"):
        raise _unknown(file, f"weights packed by {method}")


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    family = FAMILIES.get(str(config.get("model_type")))
    inner = config.get(family.text) if family is not None and family.text else None
    return inner if isinstance(inner, Mapping) else config


def _format(found: Mapping[str, Any], file: str) -> str:
    method = found.get("quant_method")
    if method == "fp8":
        block = found.get("weight_block_size")
        if block and block != [128, 128]:
            raise _unknown(file, f"float8 weights with a scale for each {block!r} of them")
        return "fp8_block" if block else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method == "modelopt" or "quant_algo" in found:
        algorithm = str(found.get("quant_algo", ""))
        known = {"NVFP4": "nvfp4", "FP8": "fp8", "FP8_PB_WO": "fp8_block", "MXFP4": "mxfp4"}
        if algorithm == "NVFP4":
            _require_group(found.get("group_size", NVFP4_GROUP), file)
        if algorithm in known:
            return known[algorithm]
        raise _unknown(file, f"weights quantised with modelopt's {algorithm!r}")
    if method in ("awq", "gptq"):
        return _integers(found.get("bits", found.get("w_bit")), found.get("group_size"), file)
    if method == "compressed-tensors":
        return _compressed(found, file)
    raise _unknown(file, f"weights quantised with {method!r}")


def _compressed(found: Mapping[str, Any], file: str) -> str:
    written = str(found.get("format", ""))
    groups = found.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    for prefix, name in (("nvfp4", "nvfp4"), ("mxfp4", "mxfp4")):
        if written.startswith(prefix):
            if name == "nvfp4" and isinstance(weights, Mapping):
                _require_group(weights.get("group_size", NVFP4_GROUP), file)
            return name
    if not isinstance(weights, Mapping):
        raise _unknown(file, "compressed-tensors without config_groups.*.weights")
    bits, group = weights.get("num_bits"), weights.get("group_size")
    if weights.get("type") == "float":
        known = {(8, "block"): "fp8_block", (4, "tensor_group"): "nvfp4", (4, "group"): "mxfp4"}
        strategy = str(weights.get("strategy"))
        fallback = "fp8" if bits == 8 else ""
        stored = known.get((bits if isinstance(bits, int) else 0, strategy), fallback)
        if stored:
            return stored
        raise _unknown(file, f"floats of {bits!r} bits by {strategy}")
    return _integers(bits, group, file)


def _require_group(size: Any, file: str) -> None:
    if size != NVFP4_GROUP:
        raise _unknown(file, f"NVFP4 with a scale for each {size!r} weights, not {NVFP4_GROUP}")


def _integers(bits: Any, group: Any, file: str) -> str:
    known = {(4, 128): "int4", (4, 32): "int4_g32"}
    if isinstance(bits, int) and isinstance(group, int) and (bits, group) in known:
        return known[(bits, group)]
    raise _unknown(file, f"integers of {bits!r} bits in groups of {group!r}")


def _left_alone(found: Mapping[str, Any]) -> set[str]:
    """Groups that the checkpoint's list of exceptions names."""
    listed: list[Any] = []
    for key in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules"):
        value = found.get(key)
        listed += value if isinstance(value, list) else []
    names = {_plain(name) for name in listed if isinstance(name, str)}
    return {
        group for group, pattern in _NAMES.items() if any(re.match(pattern, name) for name in names)
    }


def _plain(name: str) -> str:
    """A module's name without what says in which layer it is."""
    name = re.sub(r"^re:|[\\^$*]", "", name)
    name = re.sub(r"^(\.*\w*\.)*?layers\.\(?[^.]*\)?\.", "", name)
    return name.strip(".")


def _unknown(file: str, message: str) -> CheckpointError:
    hint = (
        "use the checkpoint in bfloat16, fp8, NVFP4, MXFP4, or 4-bit integers of compressed-tensors"
    )
    return CheckpointError(Problem(code="TS-W011", message=message, where=Where(file), hint=hint))
