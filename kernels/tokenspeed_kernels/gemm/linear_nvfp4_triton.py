"""Linear layers over NVFP4 weights in Triton, packed so that a lane's loads are its own operands of
the matrix units, the weight being the left one and the tokens the right one.

    y = x (W scales)^T row_scales + bias

A tile is 16 rows of 128 inputs, 1,024 bytes one after the other. Word [r, lane, q] of it holds, of
row 8 r + lane / 4, the inputs 32 i + 16 (q % 2) + 4 (lane % 4) + 2 (q / 2) + h: two of each piece i
of 32 inputs, half of which has one scale. Within half a word the codes of the four pieces lie so
that one is one to six instructions away from two bfloat16, the 2^-126th part of the values, which
times their scale are exact:

    bit         15  14  13  12  11  10   9   8   7   6   5   4   3   2   1   0
    piece        0   3   3   1   3   3   2   0   0   0   1   1   1   2   2   2
                sign sign   sign        sign

Few rows meet the words in registers, and many what becomes of them in shared memory; for hundreds
slices of the weight are widened to bfloat16 for a moment.
"""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tokenspeed_kernels.gemm.specs import WIDENED_BYTES
from tokenspeed_kernels.launch_triton import after_producer, cdiv, dependent_launch
from tokenspeed_kernels.weight import RawWeight

_ROWS, _INPUTS = 16, 128  # of a tile
_FILLED = 128  # A weight is filled up to a multiple of so many rows.
# Bits of two bfloat16 that an e2m1 has: all, signs, the upper one of the exponents, the others.
_VALUE, _SIGN, _UPPER, _LOWER = (
    tl.constexpr(bits) for bits in (-0x7E3F7E40, -0x7FFF8000, 0x01000100, 0x00C000C0)
)


@dataclass(frozen=True, slots=True)
class Few:
    """`rows` of x and `tiles` of rows of the weight, of a program; its `warps` share the inputs,
    and `ahead` turns of its loop are on their way, 1 or 2. The inputs are in `parts`."""

    rows: int
    tiles: int
    warps: int
    ahead: int = 2
    parts: int = 1


@dataclass(frozen=True, slots=True)
class Many:
    """As `Few`, but the warps share the products; `stages` of its loop are in shared memory."""

    rows: int
    tiles: int
    warps: int
    stages: int = 3
    parts: int = 1


# The most rows of x, the fewest tiles of the weight's rows, and the fastest then on an H200.
_TILES = (
    (8, 1024, Few(8, 4, 4, 1)),
    (8, 0, Few(8, 2, 8)),
    (16, 1024, Few(16, 4, 4, 1)),
    (16, 320, Few(16, 2, 4)),
    (16, 0, Few(16, 2, 8)),
    (32, 320, Many(32, 4, 4)),
    (32, 0, Few(16, 4, 4, 1)),
    (64, 0, Many(64, 4, 4)),
    (256, 0, Many(128, 4, 4)),
    (512, 0, Many(128, 8, 8)),
)

# The same in parts, which leave less of the card idle where outputs are few.
_IN_PARTS = (
    (512, 768, None),
    (8, 0, Few(8, 4, 4, 1, 4)),
    (16, 320, Few(16, 4, 4, 1, 4)),
    (16, 0, Few(16, 2, 4, 2, 4)),
    (32, 0, Many(32, 4, 4, 3, 4)),
    (64, 0, Many(64, 4, 4, 3, 4)),
    (128, 320, None),
    (128, 0, Many(128, 4, 4, 3, 4)),
)
_Table = tuple[tuple[int, int, Few | Many | None], ...]


def tile_for(rows: int, tiles: int) -> Few | Many | None:
    """Of `rows` of x and a weight of `tiles` of 16 rows. None where torch's product with a widened
    weight is faster."""
    return _first(_TILES, rows, tiles)


def _first(table: _Table, rows: int, tiles: int) -> Few | Many | None:
    return next((tile for most, least, tile in table if rows <= most and tiles >= least), None)


@triton.jit
def _words(WORDS, tile, chunk, end, CHUNKS: tl.constexpr, W: tl.constexpr, T: tl.constexpr):
    """Words of T tiles of rows and of chunks `chunk` to `chunk` + W, 0 from `end` on: [W, T * 16,
    8] of the first half of each piece, and of the second."""
    w = tl.arange(0, W)[:, None, None, None]
    t = tl.arange(0, T)[None, :, None, None]
    r = tl.arange(0, 2)[None, None, :, None]
    at = ((tile + t) * CHUNKS + chunk + w) * 256 + r * 128 + tl.arange(0, 128)[None, None, None, :]
    words = tl.load(WORDS + at, mask=chunk + w < end, other=0, eviction_policy="evict_first")
    return tl.split(tl.reshape(words, [W, T * 16, 8, 2]))


@triton.jit
def _scales(SCALES, tile, chunk, end, CHUNKS: tl.constexpr, W: tl.constexpr, T: tl.constexpr):
    """As `_words`, their scales [W, T * 16]."""
    w, n = chunk + tl.arange(0, W)[:, None], tl.arange(0, T * 16)[None, :]
    at = SCALES + ((tile + n // 16) * CHUNKS + w) * 32 + n % 16
    return tl.load(at, mask=w < end, other=0), tl.load(at + 16, mask=w < end, other=0)


@triton.jit
def _inputs(X, row, live, k, WIDTH: tl.constexpr, W: tl.constexpr, M: tl.constexpr):
    """[W, 16, M] of 16 inputs from `k` [W] on. `row`, `live` [8, M / 8]: where the rows begin, of
    row 8 j + i at [i, j]."""
    at = k[None, :, None, None] + tl.arange(0, 16)[None, None, None, :]
    there = live[:, None, :, None] & (at < WIDTH)
    # A lane of the matrix units has four inputs of a row.
    at = tl.max_contiguous(X + row[:, None, :, None] + at, (1, 1, 1, 4))
    x = tl.load(at, mask=there, other=0.0)
    return tl.reshape(tl.permute(x, (1, 3, 2, 0)), [W, 16, M])


@triton.jit
def _pairs(words, PIECE: tl.constexpr):
    """Two bfloat16 of a piece in an int32: the 2^-126th part of an e2m1."""
    if PIECE == 0:
        pairs = words & _VALUE
    elif PIECE == 1:
        pairs = (words << 3) & _VALUE
    elif PIECE == 2:
        pairs = (words << 6) & _VALUE
    else:
        pairs = ((words << 1) & _SIGN) | ((words >> 5) & _UPPER) | ((words >> 4) & _LOWER)
    return pairs


@triton.jit
def _values(words, scales, PIECE: tl.constexpr):
    """bfloat16 [.., 2 n], of a piece of `words` [.., n] with the e4m3 of `scales` [..]: exact, the
    2^-14th part."""
    pairs = _pairs(words, PIECE)
    low = (pairs & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    values = tl.reshape(tl.join(low, high), words.shape[:-1] + [2 * words.shape[-1]])  # noqa: RUF005
    bits = ((scales >> (8 * PIECE)) & 0x7F) << 20
    # An e4m3 there is the 2^-120th part.
    scales = (bits.to(tl.float32, bitcast=True) * 2.0**116 * 2.0**116).to(tl.bfloat16)
    return values * scales[:, :, None]


@triton.jit
def _part(CHUNKS: tl.constexpr, W: tl.constexpr, PARTS: tl.constexpr):
    """Where the chunks of a program begin and end."""
    if PARTS == 1:
        begin, end = 0, CHUNKS
    else:
        begin = tl.program_id(2) * (tl.cdiv(CHUNKS, PARTS * W) * W)
        end = tl.minimum(begin + tl.cdiv(CHUNKS, PARTS * W) * W, CHUNKS)
    return begin, end


@triton.jit
def _leave(
    made, ROW_SCALES, BIAS, OUT, tile, m, rows, out_features, T: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """`made` [T * 16, M], the 2^-14th part without the scales of the weight's rows, to rows `m` of
    the program's part of OUT [parts, rows, out_features]."""
    n = tile * 16 + tl.arange(0, T * 16)
    part = tl.program_id(2)
    made *= (tl.load(ROW_SCALES + n) * 16384.0)[:, None]
    inside = n < out_features
    if HAS_BIAS:
        bias = tl.load(BIAS + n, mask=inside & (part == 0), other=0.0)
        made += bias.to(tl.float32)[:, None]
    OUT += part.to(tl.int64) * rows * out_features
    to = OUT + m.to(tl.int64)[None, :] * out_features + n[:, None]
    tl.store(to, made.to(OUT.dtype.element_ty), mask=inside[:, None] & (m < rows)[None, :])


@triton.jit
def _few(
    X, WORDS, SCALES, ROW_SCALES, BIAS, OUT, rows, out_features, x_stride, WIDTH: tl.constexpr,
    M: tl.constexpr, T: tl.constexpr, W: tl.constexpr, AHEAD: tl.constexpr, PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = (WIDTH + 127) // 128
    begin, end = _part(CHUNKS, W, PARTS)
    tile = tl.program_id(0) * T
    first = tl.program_id(1) * M
    places = first + tl.arange(0, 8)[:, None] + 8 * tl.arange(0, M // 8)[None, :]
    live = places < rows
    row = places.to(tl.int64) * x_stride
    w = tl.arange(0, W)
    acc = tl.zeros([W, T * 16, M], tl.float32)
    # AHEAD turns of the loop are on their way, the first while the kernel before still writes.
    low, high = _words(WORDS, tile, begin, end, CHUNKS, W, T)
    scales, scales_high = _scales(SCALES, tile, begin, end, CHUNKS, W, T)
    if AHEAD == 2:
        low_1, high_1 = _words(WORDS, tile, begin + W, end, CHUNKS, W, T)
        scales_1, scales_high_1 = _scales(SCALES, tile, begin + W, end, CHUNKS, W, T)
    after_producer(PDL)
    for chunk in tl.range(begin, end, W, num_stages=1):
        low_2, high_2 = _words(WORDS, tile, chunk + AHEAD * W, end, CHUNKS, W, T)
        scales_2, scales_high_2 = _scales(SCALES, tile, chunk + AHEAD * W, end, CHUNKS, W, T)
        k = (chunk + w) * 128
        for piece in tl.static_range(4):
            x = _inputs(X, row, live, k + 32 * piece, WIDTH, W, M)
            acc = tl.dot(_values(low, scales, piece), x, acc)
            x = _inputs(X, row, live, k + 32 * piece + 16, WIDTH, W, M)
            acc = tl.dot(_values(high, scales_high, piece), x, acc)
        if AHEAD == 2:
            low, high, scales, scales_high = low_1, high_1, scales_1, scales_high_1
            low_1, high_1, scales_1, scales_high_1 = low_2, high_2, scales_2, scales_high_2
        else:
            low, high, scales, scales_high = low_2, high_2, scales_2, scales_high_2
    m = first + tl.arange(0, M)
    _leave(tl.sum(acc, 0), ROW_SCALES, BIAS, OUT, tile, m, rows, out_features, T, HAS_BIAS)


@triton.jit
def _chunk(low, high, low_scales, high_scales):
    """bfloat16 [T * 16, 128], the 2^-14th part, of `_words` and `_scales` of one chunk."""
    rows: tl.constexpr = low.shape[1]
    p0 = tl.join(_values(low, low_scales, 0), _values(high, high_scales, 0))
    p1 = tl.join(_values(low, low_scales, 1), _values(high, high_scales, 1))
    p2 = tl.join(_values(low, low_scales, 2), _values(high, high_scales, 2))
    p3 = tl.join(_values(low, low_scales, 3), _values(high, high_scales, 3))
    # [1, rows, 16, half, piece % 2, piece / 2]
    made = tl.join(tl.join(p0, p1), tl.join(p2, p3))
    return tl.reshape(tl.permute(made, (0, 1, 5, 4, 3, 2)), [rows, 128])


@triton.jit
def _many(
    X, WORDS, SCALES, ROW_SCALES, BIAS, OUT, rows, out_features, x_stride, WIDTH: tl.constexpr,
    M: tl.constexpr, T: tl.constexpr, STAGES: tl.constexpr, PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = (WIDTH + 127) // 128
    begin, end = _part(CHUNKS, 1, PARTS)
    tile = tl.program_id(0) * T
    m = tl.program_id(1) * M + tl.arange(0, M)
    k = tl.arange(0, 128)
    acc = tl.zeros([T * 16, M], tl.float32)
    x_at = X + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    after_producer(PDL)
    for chunk in tl.range(begin, end, 1, num_stages=STAGES):
        there = (m < rows)[:, None] & (chunk * 128 + k < WIDTH)[None, :]
        x = tl.load(x_at + chunk * 128, mask=there, other=0.0)
        low, high = _words(WORDS, tile, chunk, end, CHUNKS, 1, T)
        low_scales, high_scales = _scales(SCALES, tile, chunk, end, CHUNKS, 1, T)
        acc = tl.dot(_chunk(low, high, low_scales, high_scales), tl.trans(x), acc)
    _leave(acc, ROW_SCALES, BIAS, OUT, tile, m, rows, out_features, T, HAS_BIAS)


@triton.jit
def _widen(
    WORDS, SCALES, ROW_SCALES, OUT, out_features, WIDTH: tl.constexpr, W: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """OUT bfloat16 [out_features, WIDTH]: a tile of rows and W chunks."""
    CHUNKS: tl.constexpr = (WIDTH + 127) // 128
    tile, chunk = tl.program_id(0), tl.program_id(1) * W
    w, row = chunk + tl.arange(0, W), tl.arange(0, 16)
    low, high = _words(WORDS, tile, chunk, CHUNKS, CHUNKS, W, 1)
    low_scales, high_scales = _scales(SCALES, tile, chunk, CHUNKS, CHUNKS, W, 1)
    n = tile * 16 + row
    of_rows = (tl.load(ROW_SCALES + n) * 16384.0)[None, :, None]
    to = OUT + (n.to(tl.int64) * WIDTH)[None, :, None]
    k = (w * 128)[:, None, None] + tl.arange(0, 16)[None, None, :]
    # Others may still read what was in that memory before.
    after_producer(PDL)
    for piece in tl.static_range(4):
        there = (n < out_features)[None, :, None] & (k + 32 * piece < WIDTH)
        made = _values(low, low_scales, piece).to(tl.float32) * of_rows
        tl.store(to + k + 32 * piece, made.to(tl.bfloat16), mask=there)
        there = (n < out_features)[None, :, None] & (k + 32 * piece + 16 < WIDTH)
        made = _values(high, high_scales, piece).to(tl.float32) * of_rows
        tl.store(to + k + 32 * piece + 16, made.to(tl.bfloat16), mask=there)


@triton.jit
def _placed(codes, PIECE: tl.constexpr):
    """The bits of a piece's `codes` where `_pairs` looks for them in half a word."""
    size, sign = codes & 7, codes >> 3
    if PIECE < 3:
        placed = (size << (6 - 3 * PIECE)) | (sign << (15 - 3 * PIECE))
    else:
        placed = ((size & 4) << 11) | ((size & 3) << 10) | (sign << 14)
    return placed


@triton.jit
def _pack(DATA, WORDS, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK chunks of a tile of rows, from two codes a byte, the lower one first."""
    CHUNKS: tl.constexpr = (WIDTH + 127) // 128
    tile = tl.program_id(0)
    chunk = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[:, None]
    word = tl.arange(0, 256)[None, :]
    r, lane, q = word // 128, word // 4 % 32, word % 4
    row = tile * 16 + 8 * r + lane // 4
    data = DATA + row.to(tl.int64) * (WIDTH // 2)
    made = tl.zeros([BLOCK, 256], tl.int32)
    for piece in tl.static_range(4):
        byte = chunk * 64 + 16 * piece + 8 * (q % 2) + 2 * (lane % 4) + q // 2
        codes = tl.load(data + byte, mask=(row < rows) & (byte < WIDTH // 2), other=0)
        codes = codes.to(tl.int32)
        made |= _placed(codes & 15, piece) | (_placed(codes >> 4, piece) << 16)
    tl.store(WORDS + (tile * CHUNKS + chunk) * 256 + word, made, mask=chunk < CHUNKS)


def _packed_scales(scales: torch.Tensor, rows: int, chunks: int) -> torch.Tensor:
    """e4m3 [out, in / 16] as int32 [tiles, chunks, half of a piece, 16], four pieces in each."""
    filled = torch.zeros((rows, 8 * chunks), dtype=torch.uint8, device=scales.device)
    filled[: len(scales), : scales.shape[1]] = scales
    tiled = filled.view(rows // _ROWS, _ROWS, chunks, 4, 2).permute(0, 2, 4, 1, 3)
    return tiled.contiguous().view(torch.int32).squeeze(-1)


class LinearNvfp4Triton:
    """See `op.Linear`. NVFP4 weights, which it packs, bfloat16 rows."""

    def __init__(self, weight: RawWeight, bias: torch.Tensor | None) -> None:
        assert weight.format == "nvfp4" and weight.data.is_contiguous()
        assert weight.scales is not None and weight.row_scales is not None
        self._shape = (outs, width) = weight.shape
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        rows, chunks = cdiv(outs, _FILLED) * _FILLED, cdiv(width, _INPUTS)
        device = weight.data.device
        self._words = torch.empty((rows // _ROWS, chunks, 256), dtype=torch.int32, device=device)
        _pack[(rows // _ROWS, cdiv(chunks, 8))](
            weight.data, self._words, outs, WIDTH=width, BLOCK=8, num_warps=8
        )
        self._scales = _packed_scales(weight.scales, rows, chunks)
        self._row_scales = torch.zeros(rows, dtype=torch.float32, device=device)
        self._row_scales[:outs] = weight.row_scales

    def __call__(
        self,
        x: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        *,
        tile: Few | Many | None = None,
    ) -> torch.Tensor:
        """`tile`: to be taken whatever the rows."""
        dtype = out_dtype or x.dtype
        tile = tile or tile_for(len(x), len(self._words))
        if tile is None:
            return self._widened(x).to(dtype)
        assert tile.parts == 1
        out = torch.empty((len(x), self._shape[0]), dtype=dtype, device=x.device)
        return self._run(x, tile, out)

    def parts(
        self,
        x: torch.Tensor,
        out_dtype: torch.dtype | None = None,
        *,
        tile: Few | Many | None = None,
    ) -> torch.Tensor:
        """See `op.LinearInParts`. `tile`: to be taken whatever the rows."""
        tile = tile or _first(_IN_PARTS, len(x), len(self._words))
        if tile is None:
            return self(x, out_dtype)
        shape = (tile.parts, len(x), self._shape[0])
        return self._run(x, tile, torch.empty(shape, dtype=torch.float32, device=x.device))

    def _run(self, x: torch.Tensor, tile: Few | Many, out: torch.Tensor) -> torch.Tensor:
        assert x.stride(1) == 1
        if not len(x):
            return out
        pdl = dependent_launch(x.device)
        operands = (
            x, self._words, self._scales, self._row_scales, self._bias, out, len(x), self._shape[0],
            x.stride(0),
        )  # fmt: skip
        facts = {
            "WIDTH": self._shape[1], "M": tile.rows, "T": tile.tiles, "PARTS": tile.parts,
            "HAS_BIAS": self._bias is not None, "PDL": pdl, "num_warps": tile.warps,
            "launch_pdl": pdl,
        }  # fmt: skip
        grid = (len(self._words) // tile.tiles, cdiv(len(x), tile.rows), tile.parts)
        if isinstance(tile, Few):
            _few[grid](*operands, W=tile.warps, AHEAD=tile.ahead, **facts)
        else:
            _many[grid](*operands, STAGES=tile.stages, num_stages=tile.stages, **facts)
        return out

    def _widened(self, x: torch.Tensor) -> torch.Tensor:
        """bfloat16 [rows, out]: of slices of the weight that are bfloat16 for a moment."""
        outs, width = self._shape
        out = torch.empty((len(x), outs), dtype=torch.bfloat16, device=x.device)
        slices = cdiv(2 * outs * width, WIDENED_BYTES)
        step = cdiv(outs, slices * _FILLED) * _FILLED
        for first in range(0, outs, step):
            last = min(first + step, outs)
            weight, part = self._floats(first, last).T, out[:, first:last]
            if self._bias is None:
                torch.mm(x, weight, out=part)
            else:
                torch.addmm(self._bias[first:last], x, weight, out=part)
        return out

    def _floats(self, first: int, last: int) -> torch.Tensor:
        """bfloat16 [last - first, in], of these outputs, the first a multiple of a tile's."""
        width = self._shape[1]
        out = torch.empty((last - first, width), dtype=torch.bfloat16, device=self._words.device)
        tiles = slice(first // _ROWS, cdiv(last, _ROWS))
        words, scales = self._words[tiles], self._scales[tiles]
        pdl = dependent_launch(out.device)
        _widen[(len(words), cdiv(words.shape[1], 8))](
            words, scales, self._row_scales[first:], out, last - first, WIDTH=width, W=8, PDL=pdl,
            num_warps=8, launch_pdl=pdl,
        )  # fmt: skip
        return out
