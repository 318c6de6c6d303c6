"""Matrices that several tensors of a checkpoint make up: numbers, and what scales them.

Makers spell them differently. For a matrix X.weight [out, in], or a stack X [n, in, out]:

    float8                X.weight (e4m3) with X.weight_scale or X.weight_scale_inv (the same as it
                          is used), perhaps X.input_scale, which is not: inputs scale as they come
    MXFP4, gpt-oss        X_blocks uint8 [n, out, in / 32, 16] with X_scales uint8 [n, out, in / 32]
    MXFP4, 4-bit integers X.weight_packed, uint8 [out, in / 2] or int32 [out, in / 8], with
                          X.weight_scale [out, in / group], perhaps X.weight_shape
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]

FLOAT8 = "float8_e4m3"
# dtypes of safetensors as formats are called here; others keep their name.
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": FLOAT8,
}  # fmt: skip
_BYTES = ("U8", "F8_E8M0")
_GROUP = 32
_LACKING = "no scale beside it"
# 4-bit integers by how many inputs share a scale.
_INTEGERS = {32: "int4_g32", 128: "int4"}


@dataclass(frozen=True, slots=True)
class Scaled:
    """One matrix, stack or vector of the files. `format` is a dtype or that of its numbers;
    `data` and `scale` name the tensors. `fault`: what is wrong with the scale, "" for nothing."""

    format: str
    shape: Shape
    data: str
    scale: str | None = None
    fault: str = ""


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
        if scaled.scale is not None:
            used.add(scaled.scale)
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
    if not name.endswith("weight_packed") or len(shape) != 2 or dtype not in ("U8", "I32"):
        return None
    matrix = name.removesuffix("_packed")
    beside, rows = f"{matrix}_scale", shape[0]
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


def _with_scale(
    kept: str, whole: Shape, data: str, scale: str, expected: Shape,
    tensors: Mapping[str, tuple[str, Shape]],
) -> Scaled:  # fmt: skip
    if scale not in tensors:
        return Scaled(kept, whole, data, None, _LACKING)
    dtype, shape = tensors[scale]
    known = _BYTES if kept == "mxfp4" else ("BF16",)
    fault = ""
    if shape != expected:
        fault = f"a scale of shape {list(shape)}, not {list(expected)}"
    elif dtype not in known:
        fault = f"a scale of type {dtype}, not {' or '.join(known)}"
    return Scaled(kept, whole, data, scale, fault)
