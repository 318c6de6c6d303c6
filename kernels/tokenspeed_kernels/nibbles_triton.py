"""4-bit weights in Triton, read as they are stored, row after row, and widened in registers.

    e2m1    sign, two bits of exponent and one of mantissa lie in a float16 where its own lie, whose
            exponent counts from 14 lower; times the power of two of an e8m0 (MXFP4), or times an
            e4m3, whose bits lie in a float16 just so with an exponent from 8 lower (NVFP4)
    int4    the value less 8, times the scale of the group

Widened weights fit bfloat16: of e2m1 exactly, of int4 rounded once. What an NVFP4 has for each row
of the weight, sums are multiplied with.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl

MXFP4, NVFP4, INT4 = (tl.constexpr(kind) for kind in range(3))
NIBBLES = tl.constexpr(3)  # kinds
KINDS = {"mxfp4": MXFP4, "nvfp4": NVFP4, "int4": INT4, "int4_g32": INT4}


@triton.jit
def _half(bits):
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _values(codes, KIND: tl.constexpr):
    """Codes of four bits, int32, as float32; of e2m1 the 2^14th part of what they are."""
    if KIND == INT4:
        values = (codes - 8).to(tl.float32)
    else:
        values = _half(((codes & 7) << 9) | ((codes & 8) << 12))
    return values


@triton.jit
def _group_scales(SCALES, at, there, KIND: tl.constexpr):
    """float32, with the 2^14 that `_values` leaves out."""
    if KIND == MXFP4:
        exponents = tl.load(SCALES + at, mask=there, other=0).to(tl.int32)
        # Above 2^113 nothing has a scale.
        scales = (tl.minimum(exponents + 14, 254) << 23).to(tl.float32, bitcast=True)
    elif KIND == NVFP4:
        bits = tl.load(SCALES + at, mask=there, other=0).to(tl.int32)
        scales = _half((bits & 0x7F) << 7) * 4194304.0  # 2^(8 + 14)
    else:
        scales = tl.load(SCALES + at, mask=there, other=0.0).to(tl.float32)
    return scales


@triton.jit
def widened(
    W, SCALES, rows, start, WIDTH: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    GROUP: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """float32 weights [N, K] of `rows` [N], inputs `start` on, two a byte of `W`, [.., WIDTH / 2];
    0 beyond WIDTH. Without the scales of rows."""
    G: tl.constexpr = min(GROUP, K)
    byte = start // 2 + tl.arange(0, K // 2)
    at = rows[:, None] * (WIDTH // 2) + byte[None, :]
    pairs = tl.load(W + at, mask=(byte < WIDTH // 2)[None, :], other=0).to(tl.int32)
    values = tl.join(_values(pairs & 0xF, KIND), _values(pairs >> 4, KIND))
    first = start + tl.arange(0, K // G) * G
    at = rows[:, None] * (WIDTH // GROUP) + (first // GROUP)[None, :]
    scales = _group_scales(SCALES, at, (first < WIDTH)[None, :], KIND)
    return tl.reshape(tl.reshape(values, [N, K // G, G]) * scales[:, :, None], [N, K])


@triton.jit
def times_rows(acc, ROW_SCALES, rows, KIND: tl.constexpr):
    """Sums [M, N] times what the format has for each of `rows` [N], if it has that."""
    if KIND == NVFP4:
        acc *= tl.load(ROW_SCALES + rows)[None, :]
    return acc
