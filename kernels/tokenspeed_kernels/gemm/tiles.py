"""How products with few rows are cut, as measured: data, read without torch.

Every entry won in whole chains of dependent launches, as decode steps run them
(`bench/gpu_chain.py` on one NVIDIA H200, the shapes of an 8B model), or in an engine's steps (those
of Qwen3-30B-A3B at one row): kernels that overlap cannot be chosen alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenspeed_kernels.weight import SQUARE


@dataclass(frozen=True, slots=True)
class Tile:
    """For `small_triton`. `outputs` of a program (gate and up each half), `inputs` of one turn of
    its loop, `splits` of the inputs over programs. `maps`: weight tiles come through tensor maps.
    `matrix`: one row goes through the matrix units too."""

    outputs: int
    inputs: int
    warps: int
    stages: int
    splits: int = 1
    maps: bool = False
    matrix: bool = False


@dataclass(frozen=True, slots=True)
class Ring:
    """For `streamed_gluon`, on Hopper, where float8 weights meet rows in float8. `inputs` of one
    tile, `stages` tiles in the ring, `splits` of the inputs over programs."""

    inputs: int
    stages: int
    splits: int = 1

    outputs = 64  # rows of a weight tile, of the gate and of up each where there are both


@dataclass(frozen=True, slots=True)
class Normed:
    """For `normed_triton`: `outputs` of a program."""

    outputs: int
    warps: int = 4


Cut = Tile | Ring
# Out, in, gated: a product whose weight holds the gate and then up, [out, in] both together.
Shape = tuple[int, int, bool]

_QKV, _OUT = (6144, 4096, False), (4096, 4096, False)
_GATE_UP, _DOWN = (28672, 4096, True), (4096, 14336, False)
_HEAD = (128256, 4096, False)
# Of models 2,048 wide with experts: queries with keys or latents, router, what all tokens pass.
_QKV_2K, _LATENT_2K, _ROUTER_2K = (5120, 2048, False), (3648, 2048, False), (64, 2048, False)
_OUT_2K, _OUT_4K = (2048, 2048, False), (2048, 4096, False)
_GATE_UP_2K, _DOWN_2K = (5632, 2048, True), (2048, 2816, False)
# Of a layer without experts between others.
_DOWN_11K = (2048, 10944, False)
_HEAD_2K = (102400, 2048, False)

# Of one 2,880 wide with 64 heads of 64 and 32 experts.
_QKV_OSS, _OUT_OSS, _ROUTER_OSS = (5120, 2880, False), (2880, 4096, False), (32, 2880, False)
_HEAD_OSS = (201088, 2880, False)

# Up to 8 and up to 32 rows; both measured alike.
_FEW_2K: Mapping[Shape, Cut | None] = {
    _QKV_2K: Ring(128, 8), _LATENT_2K: Ring(128, 8), _ROUTER_2K: Ring(128, 2, 8),
    _OUT_2K: Ring(128, 4, 4), _OUT_4K: Ring(128, 4, 4), _GATE_UP_2K: Ring(128, 4),
    _DOWN_2K: Ring(128, 8), _DOWN_11K: Ring(64, 12, 3),
}  # fmt: skip
_FEW_OSS: Mapping[Shape, Cut | None] = {
    _QKV_OSS: Ring(64, 8, 3), _ROUTER_OSS: Ring(64, 3, 15),
}  # fmt: skip
# Of _OUT_OSS 180 programs: rings of 112 KiB at most, or a multiprocessor has room for one of them
# and a third run once the first are done.

# For each format, the cuts by the most rows that they are for. None, and beyond the last: torch's
# product, whose tiles share the rows of `x` among multiprocessors.
_HOPPER: Mapping[str, tuple[tuple[int, Mapping[Shape, Cut | None]], ...]] = {
    "bfloat16": (
        (1, {
            _QKV: Ring(128, 6, 2), _OUT: Ring(128, 11, 2), _GATE_UP: Tile(16, 256, 4, 4),
            _DOWN: Ring(128, 11, 2), _HEAD: Tile(16, 256, 4, 4),
            _QKV_2K: Ring(128, 4, 4), _LATENT_2K: Tile(8, 1024, 4, 2),
            _ROUTER_2K: Tile(1, 2048, 4, 1), _OUT_2K: Tile(4, 2048, 4, 1),
            _OUT_4K: Tile(4, 2048, 4, 1), _GATE_UP_2K: Tile(16, 512, 8, 3),
            _DOWN_2K: Tile(4, 2048, 4, 1), _DOWN_11K: Tile(4, 2048, 4, 1),
            _HEAD_2K: Tile(16, 256, 4, 4),
            _QKV_OSS: Ring(64, 12, 3), _OUT_OSS: Ring(128, 6, 4),
            _ROUTER_OSS: Tile(2, 4096, 4, 1), _HEAD_OSS: Tile(16, 256, 4, 4),
        }),
        (8, {
            _QKV: Ring(128, 6, 2), _OUT: Ring(128, 11, 2), _GATE_UP: Ring(128, 3),
            _DOWN: Ring(128, 11, 2), _HEAD: Ring(128, 3),
            **_FEW_2K, _HEAD_2K: Tile(64, 128, 4, 4), **_FEW_OSS, _OUT_OSS: Ring(128, 6, 4),
            _HEAD_OSS: Ring(64, 6),
        }),
        (32, {
            _QKV: Ring(128, 4, 2), _OUT: Ring(128, 8, 2), _GATE_UP: Ring(128, 2),
            _DOWN: Ring(128, 8, 2), _HEAD: Ring(128, 3),
            **_FEW_2K, _HEAD_2K: Ring(64, 6), **_FEW_OSS, _OUT_OSS: Ring(128, 4, 4),
            _HEAD_OSS: Ring(64, 6),
        }),
        (64, {
            _QKV: Ring(128, 6), _OUT: Ring(128, 6, 2), _GATE_UP: Ring(128, 2),
            _DOWN: Ring(128, 6, 2), _HEAD: Ring(128, 3), _ROUTER_2K: Ring(128, 2, 8),
            _ROUTER_OSS: Ring(64, 3, 15),
        }),
        (128, {
            _QKV: Ring(64, 8), _OUT: Ring(64, 8, 2), _GATE_UP: Ring(64, 3),
            _DOWN: Ring(128, 4, 2), _HEAD: None, _ROUTER_2K: Ring(128, 2, 8),
            _ROUTER_OSS: Ring(64, 3, 15),
        }),
    ),
    "fp8": (
        (1, {
            _QKV: Tile(16, 512, 8, 3), _OUT: Tile(16, 1024, 4, 3), _GATE_UP: Tile(16, 256, 2, 4),
            _DOWN: Tile(16, 1024, 4, 3), _HEAD: Tile(32, 256, 4, 4),
            _QKV_2K: Tile(16, 512, 8, 3), _OUT_4K: Tile(4, 2048, 4, 2),
        }),
        (16, {
            _QKV: Tile(16, 512, 1, 3, maps=True), _OUT: Tile(32, 256, 2, 4, 2),
            _GATE_UP: Tile(32, 256, 2, 4), _DOWN: Tile(32, 256, 2, 4, 4, maps=True),
            _HEAD: Tile(32, 256, 2, 4),
        }),
    ),
}  # fmt: skip
# Where rows become float8 too, but those that meet a tile.
_FLOAT8_ROWS: tuple[tuple[int, Mapping[Shape, Cut | None]], ...] = (
    (1, {
        _QKV: Ring(256, 5, 2), _OUT: Ring(256, 11), _GATE_UP: Ring(256, 3),
        _DOWN: Ring(256, 11, 2), _HEAD: Ring(256, 3),
        _QKV_2K: Tile(16, 512, 8, 3), _OUT_4K: Tile(4, 2048, 4, 2),
    }),
    (8, {
        _QKV: Ring(256, 5, 2), _OUT: Ring(256, 11), _GATE_UP: Ring(128, 6),
        _DOWN: Ring(256, 11, 2), _HEAD: Ring(256, 6),
    }),
    (16, {
        _QKV: Ring(128, 10, 2), _OUT: Ring(256, 10), _GATE_UP: Ring(128, 5),
        _DOWN: Ring(256, 10, 2), _HEAD: Ring(256, 3),
    }),
    (32, {
        _QKV: Ring(128, 8, 2), _OUT: Ring(256, 4), _GATE_UP: Ring(256, 5),
        _DOWN: Ring(256, 8, 2), _HEAD: Ring(128, 6),
    }),
    (64, {
        _QKV: Ring(128, 6, 2), _OUT: Ring(256, 6), _GATE_UP: Ring(128, 4),
        _DOWN: Ring(256, 6, 2), _HEAD: Ring(128, 6),
    }),
    (128, {
        _QKV: Ring(128, 8), _OUT: Ring(256, 4), _GATE_UP: Ring(128, 3),
        _DOWN: Ring(256, 4, 2), _HEAD: None,
    }),
)  # fmt: skip
# Wherever nothing was measured.
_ANYWHERE: Mapping[str, tuple[tuple[int, Mapping[Shape, Cut | None]], ...]] = {
    "bfloat16": ((1, {_OUT: Tile(16, 256, 4, 4)}), (16, {_OUT: Tile(32, 256, 4, 4)})),
    "fp8": ((1, {_OUT: Tile(16, 512, 4, 4)}), (16, {_OUT: Tile(32, 256, 2, 4)})),
    # A tile lies within one block of 128 inputs, which has one scale.
    "fp8_block": ((16, {_OUT: Tile(32, 128, 2, 6, matrix=True)}),),
}


def cuts(
    weight_format: str, shape: Shape, hopper: bool, float8_rows: bool = False
) -> tuple[tuple[int, Cut | None], ...]:
    """The cuts of a product by the most rows that they are for, in order: those of the measured
    shape that is nearest, fitted to this one; None: torch's product is faster. `hopper`: whether
    rings run on the device. `float8_rows`: float8 weights may meet few rows in float8."""
    measured = (_HOPPER if hopper and weight_format in _HOPPER else _ANYWHERE)[weight_format]
    if float8_rows and hopper and weight_format == "fp8_block" and _in_squares(shape):
        return tuple((rows, _of_squares(cut)) for rows, cut in cuts("fp8", shape, True, True))
    rings = float8_rows and hopper and weight_format == "fp8"
    if rings:
        measured = _FLOAT8_ROWS
    found = [
        (rows, table[min(table, key=lambda known: _distance(known, shape))])
        for rows, table in measured
    ]
    fitted = [(rows, None if cut is None else _fitted(cut, shape)) for rows, cut in found]
    # More rows than that are slow to meet weights that are widened for them.
    return tuple(
        (rows, None if rings and rows > 16 and isinstance(cut, Tile) else cut)
        for rows, cut in fitted
    )


# Of a row's norm and product: inputs, values of the weight that a program holds, programs.
_MOST_INPUTS, _MOST_VALUES, _MOST_NORMED = 4096, 16384, 528


def normed(weight_format: str, shape: Shape, hopper: bool) -> Normed | None:
    """The cut of a product that makes its row's norm; None where the norm is left to a kernel of
    its own: where it would be made again by programs that do not all run at once."""
    (_, cut), *_ = cuts(weight_format, shape, hopper)
    out_features, in_features, _ = shape
    plain = weight_format == "bfloat16" and isinstance(cut, Tile) and not cut.matrix
    if not plain or in_features > _MOST_INPUTS:
        return None
    outputs = 1
    while outputs * in_features < _MOST_VALUES and -(-out_features // outputs) > _MOST_NORMED:
        outputs *= 2
    return Normed(outputs) if -(-out_features // outputs) <= _MOST_NORMED else None


def whole(cut: Cut) -> Cut:
    """The same without splits: the product itself instead of parts to be added up."""
    return replace(cut, splits=1)


def _in_squares(shape: Shape) -> bool:
    """Whether blocks cover a weight, of gate and up each."""
    out_features, in_features, gated = shape
    return out_features % (SQUARE * (2 if gated else 1)) == in_features % SQUARE == 0


def _of_squares(cut: Cut | None) -> Ring:
    """As much memory in tiles that lie within one block each."""
    if not isinstance(cut, Ring):
        return Ring(SQUARE, 6)
    tiles = max(cut.inputs // SQUARE, 1)
    return Ring(min(cut.inputs, SQUARE), min(cut.stages * tiles, 16), cut.splits)


def _distance(known: Shape, shape: Shape) -> float:
    apart = abs(math.log(known[0] / shape[0])) + abs(math.log(known[1] / shape[1]))
    return apart + (100.0 if known[2] != shape[2] else 0.0)


def _fitted(cut: Cut, shape: Shape) -> Cut:
    """Splits and rings cover a weight exactly; where they would not, something simpler does."""
    out_features, in_features, gated = shape
    if gated:
        cut = whole(cut)
    if isinstance(cut, Ring) and in_features % cut.inputs:
        cut = Ring(64, 6, cut.splits)
    # As many as were measured, or nearly: 171 tiles of inputs in two would be a program for all.
    near = sorted(range(1, 2 * cut.splits + 1), key=lambda count: (abs(count - cut.splits), -count))
    fits = (count for count in near if in_features % (count * cut.inputs) == 0)
    cut = replace(cut, splits=next(fits, 1))
    if isinstance(cut, Ring):
        uneven = gated and out_features % (2 * cut.outputs)
        if uneven or in_features % cut.inputs:
            return Tile(32, 128, 4, 4)
    return cut
