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

from tokenspeed_kernels.launch_triton import cdiv
from tokenspeed_kernels.weight import NIBBLE_GROUPS, RawWeight

E2M1, INT4 = tl.constexpr(0), tl.constexpr(1)
KINDS = {"mxfp4": E2M1, "int4": INT4, "int4_g32": INT4}
ROWS, INPUTS = 16, 128  # of a tile
# Bits of two float16 that an e2m1 has, and those of words that hold its third and fourth piece.
_BITS, _THIRD, _FOURTH = (tl.constexpr(bits) for bits in (-0x71FF7200, 0x40384038, 0x20072007))
# Where the exponents of four groups begin in an int32.
EXPONENTS = (23, 16, 7, 0)
# The largest float16: beyond it lies infinity.
LARGEST = tl.constexpr(65504.0)


@triton.jit
def _piece(words, PIECE: tl.constexpr, KIND: tl.constexpr):
    """Inputs of a piece, two float16 in an int32."""
    if KIND == INT4:
        pairs = ((words >> (4 * PIECE)) & 0x000F000F) | 0x64006400
    elif PIECE < 2:
        pairs = (words << (3 * PIECE)) & _BITS
    # A product shifts exponents with mantissas by 3 * PIECE, signs by PIECE - 1, with one
    # instruction and beside the unit that masks. What else it makes carries into no bit of these.
    elif PIECE == 2:
        pairs = ((words & _THIRD) * 0x42) & _BITS
    else:
        pairs = ((words & _FOURTH) * 0x204) & _BITS
    return pairs


@triton.jit
def power(four, PIECE: tl.constexpr):
    """float32 of the exponent of a piece among those of four."""
    if PIECE == 0:
        bits = four
    elif PIECE == 1:
        bits = four << 7
    elif PIECE == 2:
        bits = four << 16
    else:
        bits = four << 23
    return (bits & 0x3F800000).to(tl.float32, bitcast=True)


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


@triton.jit
def _placed(codes, PIECE: tl.constexpr, KIND: tl.constexpr):
    """The bits of a piece's `codes` where `_piece` looks for them in half a word."""
    size, sign = codes & 7, codes >> 3
    if KIND == INT4:
        placed = codes << (4 * PIECE)
    elif PIECE < 2:
        placed = (size << (9 - 3 * PIECE)) | (sign << (15 - 3 * PIECE))
    else:
        placed = (size << (9 - 3 * PIECE)) | (sign << (16 - PIECE))
    return placed


@triton.jit
def _pack(DATA, WORDS, WIDTH: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK chunks of a tile of rows, from two codes a byte, the lower one first."""
    CHUNKS: tl.constexpr = (WIDTH + 127) // 128
    tile = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    word = tl.arange(0, 256)[None, :]
    r, lane, q = word // 128, word // 4 % 32, word % 4
    row = tile * 16 + 8 * r + lane // 4
    made = tl.zeros([BLOCK, 256], tl.int32)
    for piece in tl.static_range(4):
        byte = chunk * 64 + 16 * piece + 4 * (lane % 4) + q
        # Of int4 the code 0 is not 0, but beyond the width the scale is.
        codes = tl.load(DATA + row * (WIDTH // 2) + byte, mask=byte < WIDTH // 2, other=0)
        codes = codes.to(tl.int32)
        made |= _placed(codes & 15, piece, KIND) | (_placed(codes >> 4, piece, KIND) << 16)
    tl.store(WORDS + (tile * CHUNKS + chunk) * 256 + word, made, mask=chunk < CHUNKS)


def pack(weight: RawWeight) -> Packed:
    """`weight` in tiles; inputs that are missing to the last chunk are 0."""
    assert weight.scales is not None
    rows, width = weight.shape
    assert rows % ROWS == 0
    chunks, size = -(-width // INPUTS), NIBBLE_GROUPS[weight.format]
    groups = INPUTS // size
    e2m1 = weight.format == "mxfp4"
    assert weight.data.is_contiguous()
    words = torch.empty((rows // ROWS, chunks, 256), dtype=torch.int32, device=weight.data.device)
    _pack[(rows // ROWS, cdiv(chunks, 8))](
        weight.data, words, WIDTH=width, KIND=KINDS[weight.format].value, BLOCK=8, num_warps=8
    )
    scales, left = _relative(weight.scales, e2m1)
    wide = torch.zeros((rows, chunks * groups), dtype=scales.dtype, device=scales.device)
    wide[:, : scales.shape[1]] = scales
    tiled = wide.view(rows // ROWS, ROWS, chunks, groups).permute(0, 2, 3, 1)
    if e2m1:
        tiled = (tiled << torch.tensor(EXPONENTS, device=tiled.device)[:, None]).sum(2).int()
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
