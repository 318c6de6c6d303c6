"""4-bit weights of experts as the Triton kernels read them, packed so that a lane's loads are its
own operands of the matrix units, the weight being the left one and the tokens the right one.

A tile is 16 rows of 128 inputs, 1,024 bytes one after the other. Word [r, lane, q] of it holds, of
row 8 r + lane / 4, the inputs 32 i + 8 (lane % 4) + 2 q + h: two of each piece i of 32 inputs. So a
lane loads 16 bytes at a time; a piece is one group of scales; and tokens are read 16 bytes a lane
too. Within a word the codes lie such that a piece is one to four instructions away from two
float16:

    e2m1    sign, two bits of exponent and one of mantissa: the 2^-14th part of the value
    int4    1,024 and the code

Scales are relative to the largest of the stack, by a power of two that is multiplied out of the
sums. Those of e2m1 are exponents of a float16, 1 to 30, and 96 more for one of a float32: what is
2^30 times smaller than the largest is next to nothing, and from 2^23 on products may lose bits
where float16 holds them. Tokens are float16 too, rounded no more than bfloat16 had rounded them;
what lies beyond 65,504 is cut off there.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.weight import NIBBLE_GROUPS, RawWeight

E2M1, INT4 = tl.constexpr(0), tl.constexpr(1)
KINDS = {"mxfp4": E2M1, "int4": INT4, "int4_g32": INT4}
ROWS, INPUTS = 16, 128  # of a tile
# Bits of two float16 that an e2m1 has: signs, exponents and mantissas, and both.
_SIGNS, _LOWER, _BITS = (tl.constexpr(bits) for bits in (-0x7FFF8000, 0x0E000E00, -0x71FF7200))
# The largest float16: beyond it lies infinity.
LARGEST = tl.constexpr(65504.0)


@triton.jit
def _piece(words, PIECE: tl.constexpr, KIND: tl.constexpr):
    """Inputs of a piece, two float16 in an int32."""
    if KIND == INT4:
        pairs = ((words >> (4 * PIECE)) & 0x000F000F) | 0x64006400
    elif PIECE < 2:
        pairs = (words << (8 * PIECE)) & _BITS
    elif PIECE == 2:
        pairs = ((words >> 3) & _LOWER) | ((words << 7) & _SIGNS)
    else:
        pairs = ((words << 5) & _LOWER) | ((words << 15) & _SIGNS)
    return pairs


@triton.jit
def weights(words, PIECE: tl.constexpr, KIND: tl.constexpr):
    """float16 [.., 32] of a piece of `words` [.., 16], without its scales."""
    pairs = _piece(words, PIECE, KIND)
    low = (pairs & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    values = tl.reshape(tl.join(low, high), words.shape[:-1] + [32])  # noqa: RUF005
    if KIND == INT4:
        values -= 1032.0
    return values


@triton.jit
def narrow(x):
    """As float16."""
    return tl.minimum(tl.maximum(x.to(tl.float32), -LARGEST), LARGEST).to(tl.float16)


@dataclass(frozen=True, slots=True)
class Packed:
    """A stack of matrices in tiles: `words` int32 [tile of rows, chunk, 256], `scales` float16
    [tile of rows, chunk, groups of a chunk, 16], or for e2m1 int32 [tile of rows, chunk, 16] of the
    exponents of four groups. Sums of products are to be multiplied by `left`, or where scales were
    taken as float32 by `left_wide`."""

    words: torch.Tensor
    scales: torch.Tensor
    groups: int
    left: float
    left_wide: float


# Where in a half of a word the bits of a code lie, the lowest first, by piece.
_E2M1_BITS = ((9, 10, 11, 15), (1, 2, 3, 7), (12, 13, 14, 8), (4, 5, 6, 0))
_INT4_BITS = tuple(tuple(range(4 * piece, 4 * piece + 4)) for piece in range(4))
# Rows that are packed at once, which takes 4 bytes an input.
_AT_ONCE = 4096


def pack(weight: RawWeight) -> Packed:
    """`weight` in tiles; inputs that are missing to the last chunk are 0."""
    assert weight.scales is not None
    rows, width = weight.shape
    assert rows % ROWS == 0
    chunks, size = -(-width // INPUTS), NIBBLE_GROUPS[weight.format]
    groups = INPUTS // size
    e2m1 = weight.format == "mxfp4"
    bits = _E2M1_BITS if e2m1 else _INT4_BITS
    words = torch.empty((rows // ROWS, chunks, 256), dtype=torch.int32, device=weight.data.device)
    for begin in range(0, rows, _AT_ONCE):
        part = weight.data[begin : begin + _AT_ONCE]
        # Of int4 the code 8 is nothing, but then neither is the scale.
        codes = torch.zeros((len(part), chunks * INPUTS), dtype=torch.int32, device=part.device)
        codes[:, 0:width:2] = part & 0xF
        codes[:, 1:width:2] = part >> 4
        # [tile, r, row, chunk, piece, lane of a row, q, half of a word]
        codes = codes.view(-1, 2, 8, chunks, 4, 4, 4, 2)
        made = torch.zeros_like(codes[:, :, :, :, 0, :, :, 0])
        for piece in range(4):
            for half in range(2):
                code = codes[:, :, :, :, piece, :, :, half]
                for bit, place in enumerate(bits[piece]):
                    # The highest bit of a word is its sign.
                    made |= (code >> bit & 1) << (16 * half + place)
        words[begin // ROWS : begin // ROWS + len(made)] = made.permute(0, 3, 1, 2, 4, 5).flatten(2)
    scales, left = _relative(weight.scales, e2m1)
    wide = torch.zeros((rows, chunks * groups), dtype=scales.dtype, device=scales.device)
    wide[:, : scales.shape[1]] = scales
    tiled = wide.view(rows // ROWS, ROWS, chunks, groups).permute(0, 2, 3, 1)
    if e2m1:
        tiled = (tiled << (8 * torch.arange(4, device=tiled.device))[:, None]).sum(2).int()
    # An exponent of 96 and e is one of 2^(e - 31), and that of a float16 one of 2^(e - 15).
    return Packed(words, tiled.contiguous(), groups, left, left * 2.0**16 if e2m1 else left)


def _relative(scales: torch.Tensor, e2m1: bool) -> tuple[torch.Tensor, float]:
    """Scales over a power of two, as `Packed` has them, and what makes up for it. Waits for the
    device."""
    if e2m1:
        largest = int(scales.max())
        # A float16 of exponent 30 is 2^15; the codes are the 2^-14th part.
        return (scales.int() + (30 - largest)).clamp(min=0) | 96, 2.0 ** (largest - 127 - 1)
    power = math.floor(math.log2(max(float(scales.max()), 2.0**-120)))
    return (scales.float() * 2.0**-power).half(), 2.0**power
