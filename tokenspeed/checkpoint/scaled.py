"""Matrices that several tensors of a checkpoint make up: numbers, and what scales them.

Makers spell them differently. For a matrix X.weight [out, in], or a stack X [n, in, out]:

    float8                X.weight (e4m3) with X.weight_scale or X.weight_scale_inv (the same as it
                          is used), perhaps X.input_scale, which is not: inputs scale as they come
    MXFP4, gpt-oss        X_blocks uint8 [n, out, in / 32, 16] with X_scales uint8 [n, out, in / 32]
    MXFP4, 4-bit integers X.weight_packed, uint8 [out, in / 2] or int32 [out, in / 8], with
                          X.weight_scale [out, in / group], perhaps X.weight_shape
    NVFP4, compressed     X.weight_packed uint8 [out, in / 2], X.weight_scale e4m3 [out, in / 16],
                          X.weight_global_scale float32, one number that divides; perhaps
                          X.input_global_scale, which is not used: inputs are not quantised
    NVFP4, ModelOpt       X.weight uint8 [out, in / 2], X.weight_scale as there, X.weight_scale_2
                          float32, one number that multiplies; perhaps X.input_scale, not used
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

Shape = tuple[int, ...]

FLOAT8 = "float8_e4m3"
# dtypes of safetensors as formats are called here; others keep their name.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": FLOAT8,
}  # fmt: skip
_BYTES = ("U8", "F8_E8M0")
_GROUP = 32
NVFP4_GROUP = 16
_LACKING = "no scale beside it"
# 4-bit integers by how many inputs share a scale.
_INTEGERS = {32: "int4_g32", 128: "int4"}


@dataclass(frozen=True, slots=True)
class Scaled:
    """One matrix, stack or vector of the files. `format` is a dtype or that of its numbers;
    `data` and `scale` name the tensors, `global_scale` that of the whole matrix, where the format
    has one; `divides`: by which its numbers are to be divided. `fault`: what is wrong with the
    scales, "" for nothing."""

    format: str
    shape: Shape
    data: str
    scale: str | None = None
    fault: str = ""
    global_scale: str | None = None
    divides: bool = False


def gather(tensors: Mapping[str, tuple[str, Shape]]) -> dict[str, Scaled]:
    """`tensors`, name to dtype (as safetensors calls it) and shape, as what they make up, by the
    name that it would have as floats."""
    found: dict[str, Scaled] = {}
    used: set[str] = set()
    for name, (dtype, shape) in tensors.items():
        one = _packed(name, dtype, shape, tensors)
        if one is None:
            found[name] = Scaled(DTYPES.get(dtype, dtype), shape, name)
            if dtype == "F8_E4M3":
                scale = next((beside for beside in _scales(name) if beside in tensors), None)
                found[name] = Scaled(FLOAT8, shape, name, scale, "" if scale else _LACKING)
                used.update(beside for beside in _beside_float8(name) if beside in tensors)
            continue
        matrix, scaled = one
        found[matrix] = scaled
        used.add(f"{matrix}_shape")
        used.update(one for one in (scaled.scale, scaled.global_scale) if one is not None)
        if scaled.format == "nvfp4":
            stem = matrix.removesuffix("weight")
            used.update((f"{stem}input_scale", f"{stem}input_global_scale"))
    return {name: one for name, one in found.items() if name not in used}


def _scales(weight: str) -> Iterator[str]:
    stem = weight.removesuffix("weight")
    yield f"{stem}weight_scale"
    yield f"{stem}weight_scale_inv"


def _beside_float8(weight: str) -> Iterator[str]:
    yield from _scales(weight)
    yield weight.removesuffix("weight") + "input_scale"


def _packed(
    name: str, dtype: str, shape: Shape, tensors: Mapping[str, tuple[str, Shape]]
) -> tuple[str, Scaled] | None:
    """The matrix whose 4-bit numbers are in that tensor, and its name; None: it has none."""
    if name.endswith("_blocks") and dtype == "U8" and len(shape) == 4 and shape[3] == _GROUP // 2:
        matrix = name.removesuffix("_blocks")
        stack = (shape[0], shape[2] * _GROUP, shape[1])
        return matrix, _with_scale("mxfp4", stack, name, f"{matrix}_scales", shape[:3], tensors)
    by_groups = tensors.get(f"{name}_scale", ("", ()))[0] == "F8_E4M3"
    if name.endswith(".weight") and dtype == "U8" and len(shape) == 2 and by_groups:
        return name, _nvfp4(name, name, shape, f"{name}_scale_2", tensors)
    if not name.endswith("weight_packed") or len(shape) != 2 or dtype not in ("U8", "I32"):
        return None
    matrix = name.removesuffix("_packed")
    beside, rows = f"{matrix}_scale", shape[0]
    if dtype == "U8" and tensors.get(beside, ("", ()))[0] == "F8_E4M3":
        return matrix, _nvfp4(matrix, name, shape, f"{matrix}_global_scale", tensors)
    if dtype == "U8":
        whole = (rows, shape[1] * 2)
        groups = (rows, whole[1] // _GROUP)
        return matrix, _with_scale("mxfp4", whole, name, beside, groups, tensors)
    whole = (rows, shape[1] * 8)
    scale_shape = tensors.get(beside, ("", ()))[1]
    columns = scale_shape[1] if len(scale_shape) == 2 and scale_shape[1] else 1
    kept = _INTEGERS.get(whole[1] // columns, "int4")
    groups = (rows, whole[1] // (_GROUP if kept == "int4_g32" else 128))
    return matrix, _with_scale(kept, whole, name, beside, groups, tensors)


def _nvfp4(
    matrix: str, data: str, shape: Shape, whole: str, tensors: Mapping[str, tuple[str, Shape]]
) -> Scaled:
    """`whole` names the scale of the whole matrix."""
    stored = (*shape[:-1], shape[-1] * 2)
    groups = (*shape[:-1], stored[-1] // NVFP4_GROUP)
    found = _with_scale("nvfp4", stored, data, f"{matrix}_scale", groups, tensors)
    if found.fault:
        return found
    if whole not in tensors:
        return replace(found, fault="no global scale beside it")
    dtype, of = tensors[whole]
    fault = ""
    if dtype != "F32" or math.prod(of) != 1:
        fault = f"a global scale of type {dtype} and shape {list(of)}, not one F32"
    divides = whole.endswith("_global_scale")
    return replace(found, global_scale=whole, divides=divides, fault=fault)


def _with_scale(
    kept: str, whole: Shape, data: str, scale: str, expected: Shape,
    tensors: Mapping[str, tuple[str, Shape]],
) -> Scaled:  # fmt: skip
    if scale not in tensors:
        return Scaled(kept, whole, data, None, _LACKING)
    dtype, shape = tensors[scale]
    known = {"mxfp4": _BYTES, "nvfp4": ("F8_E4M3",)}.get(kept, ("BF16",))
    fault = ""
    if shape != expected:
        fault = f"a scale of shape {list(shape)}, not {list(expected)}"
    elif dtype not in known:
        fault = f"a scale of type {dtype}, not {' or '.join(known)}"
    return Scaled(kept, whole, data, scale, fault)
