// AVX2: the 16 rows of a tile are two registers. There is no product of bytes with 16 bits, so the
// weights are widened: of 4 inputs in a lane, the even bytes are one register of int16 pairs and
// the odd bytes another, and vpmaddwd multiplies each with a pair of activations. Hence the order
// of the activations: 0 2, 1 3, 4 6, 5 7 and so on.
#include "cpu/linear.h"

#if TS_X86
#include <immintrin.h>

#include <algorithm>
#include <numeric>

#define TS_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TS_AVX2_INLINE TS_AVX2 __attribute__((always_inline)) inline

namespace ts {
namespace {

// Rows that share the widened weights: 4 sums, 8 totals and the weights fill the 16 registers.
constexpr int kMaxRows = 4;

TS_AVX2_INLINE __m256i LoadBytes(const std::uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

TS_AVX2_INLINE __m256i BroadcastPair(const std::uint8_t* at) {
  std::int32_t word;
  __builtin_memcpy(&word, at, sizeof word);
  return _mm256_set1_epi32(word);
}

TS_AVX2_INLINE __m256 LoadHalves(const std::uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

TS_AVX2_INLINE float LargestOf(const __m256 (&x)[4]) {
  __m256 largest = _mm256_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    largest = _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x[i]));
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, largest);
  return *std::max_element(lanes, lanes + 8);
}

TS_AVX2 void Quantise(const float* x, std::size_t rows, std::size_t blocks, RowBlock* to) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t b = 0; b < blocks; ++b, x += kBlock) {
      __m256 values[4];
      for (int i = 0; i < 4; ++i) values[i] = _mm256_loadu_ps(x + 8 * i);
      const float largest = LargestOf(values);
      const __m256 inverse = _mm256_set1_ps(largest > kNegligible ? kLargest / largest : 0.0f);
      RowBlock& block = to[b * rows + r];
      __m256i sums = _mm256_setzero_si256();
      for (int i = 0; i < 4; ++i) {
        const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], inverse));
        sums = _mm256_add_epi32(sums, whole);
        const __m256i halves = _mm256_packs_epi32(whole, whole);
        const __m128i ordered =
            _mm_unpacklo_epi64(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
        const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(block.values) + i,
                         _mm_shuffle_epi8(ordered, order));
      }
      alignas(32) std::int32_t lanes[8];
      _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
      const std::int32_t sum = std::accumulate(lanes, lanes + 8, 0);
      block.scale = largest / kLargest;
      block.scaled_sum = block.scale * static_cast<float>(sum);
      block.offset = -128 * sum;
    }
  }
}

// Adds the products of 32 weight bytes, inputs 4 `group` and following, with each row.
template <int kRows>
TS_AVX2_INLINE void AddGroup(__m256i bytes, int group, const RowBlock* x, __m256i (&sums)[kRows]) {
  const __m256i even = _mm256_and_si256(bytes, _mm256_set1_epi16(255));
  const __m256i odd = _mm256_srli_epi16(bytes, 8);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const std::uint8_t* values = x[r].values + group * 8;
    sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(even, BroadcastPair(values)));
    sums[r] = _mm256_add_epi32(sums[r], _mm256_madd_epi16(odd, BroadcastPair(values + 4)));
  }
}

// Integer sums of one block for rows [8 half, 8 half + 8) of the tile.
template <WeightFormat kFormat, int kRows>
TS_AVX2_INLINE void BlockSums(const std::uint8_t* block, int half, const RowBlock* x,
                              __m256i (&sums)[kRows]) {
  const std::uint8_t* at = block + half * 32;
  if constexpr (kFormat == WeightFormat::kQ4_1) {
    for (int r = 0; r < kRows; ++r) sums[r] = _mm256_setzero_si256();
    const __m256i mask = _mm256_set1_epi8(15);
    for (int g = 0; g < 4; ++g) {
      const __m256i bytes = LoadBytes(at + g * 64);
      AddGroup<kRows>(_mm256_and_si256(bytes, mask), g, x, sums);
      AddGroup<kRows>(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask), 4 + g, x, sums);
    }
  } else {
    for (int r = 0; r < kRows; ++r) sums[r] = _mm256_set1_epi32(x[r].offset);
    for (int g = 0; g < 8; ++g) AddGroup<kRows>(LoadBytes(at + g * 64), g, x, sums);
  }
}

// One pass over a tile's weights for kRows activation rows.
template <WeightFormat kFormat, int kRows>
TS_AVX2 void Step(const PackedWeight& weight, std::size_t tile, const RowBlock* x, float* out) {
  constexpr bool kQ4 = kFormat == WeightFormat::kQ4_1;
  const std::uint8_t* data = weight.tile(tile);
  __m256 total[2][kRows];
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < kRows; ++r) total[half][r] = _mm256_loadu_ps(weight.bias(tile) + half * 8);
  }
  for (std::size_t b = 0; b < weight.blocks(); ++b, x += kRows) {
    const std::uint8_t* block = data + (kQ4 ? b * kQ4BlockBytes : Q8Groups(b));
    const std::uint8_t* scales = kQ4 ? block + kQ4GroupBytes : data + Q8Scales(b);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256i sums[kRows];
      BlockSums<kFormat, kRows>(block, half, x, sums);
      const __m256 d = LoadHalves(scales + half * 16);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        __m256& sum = total[half][r];
        const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(x[r].scale));
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[r]), scale, sum);
        if constexpr (kQ4) {
          const __m256 minimum = LoadHalves(scales + kScaleBytes + half * 16);
          sum = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x[r].scaled_sum), sum);
        }
      }
    }
  }
  const std::size_t left = std::min<std::size_t>(kTileRows, weight.rows() - tile * kTileRows);
  for (int r = 0; r < kRows; ++r) {
    alignas(32) float lanes[kTileRows];
    for (int half = 0; half < 2; ++half) _mm256_store_ps(lanes + half * 8, total[half][r]);
    std::copy_n(lanes, left, out + r * weight.rows());
  }
}

template <WeightFormat kFormat>
TS_AVX2 void TileOf(const PackedWeight& weight, std::size_t tile, const RowBlock* x,
                    std::size_t rows, float* out) {
  switch (rows) {
    case 4: return Step<kFormat, 4>(weight, tile, x, out);
    case 3: return Step<kFormat, 3>(weight, tile, x, out);
    case 2: return Step<kFormat, 2>(weight, tile, x, out);
    case 1: return Step<kFormat, 1>(weight, tile, x, out);
    default: return;
  }
}

void Tile(const PackedWeight& weight, std::size_t tile, const RowBlock* x, std::size_t rows,
          float* out) {
  if (weight.format() == WeightFormat::kQ4_1) {
    TileOf<WeightFormat::kQ4_1>(weight, tile, x, rows, out);
  } else {
    TileOf<WeightFormat::kQ8_0>(weight, tile, x, rows, out);
  }
}

}  // namespace

const LinearOps& Avx2Linear() {
  static const LinearOps ops = {kMaxRows, Quantise, Tile};
  return ops;
}

}  // namespace ts
#endif
