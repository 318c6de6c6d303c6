// AVX-512 VNNI: 16 output rows are the lanes of one register. For each group of 4 inputs,
// vpdpbusd multiplies 64 weights with 4 bytes broadcast from memory, once with the high and once
// with the low bytes of the activations, 256 hi + lo: values[0..32) and values[32..64).
//
// The two rows of products share the unpacked weights, which vpdpwssd would need as int16, twice
// as many registers. On Zen 4 a row of a block takes 16 dot products and 3 multiplications, one a
// cycle; all else goes to other ports.
#include "cpu/linear.h"

#if TS_X86
#include <immintrin.h>

#include <algorithm>

#define TS_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")))
#define TS_VNNI_INLINE TS_VNNI __attribute__((always_inline)) inline

namespace ts {
namespace {

// At most this many rows are taken per pass over a tile: 8 weights, 16 totals, 4 sums, the scales
// and spare registers fill the 32.
constexpr int kMaxRows = 16;

// With few rows the loads themselves run far enough ahead, and the hardware prefetcher is faster
// alone. With more, one block is 100 cycles of work and the next must be asked for explicitly.
constexpr int kPrefetchRows = 5;
constexpr std::size_t kPrefetchBytes = 2048;

// Where the 4 inputs of a group lie among the bytes of a block: packing to int16 interleaves the
// halves of the block by fours.
constexpr int Place(int group) { return group % 4 * 8 + group / 4 * 4; }

TS_VNNI void Quantise(const float* x, std::size_t rows, std::size_t blocks, RowBlock* to) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t b = 0; b < blocks; ++b, x += kBlock) {
      const __m512 first = _mm512_loadu_ps(x);
      const __m512 second = _mm512_loadu_ps(x + 16);
      const float largest =
          _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
      const __m512 inverse = _mm512_set1_ps(largest > kNegligible ? kLargest / largest : 0.0f);
      // 32 of int16, in the order of Place.
      const __m512i values =
          _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(first, inverse)),
                             _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse)));
      // The low byte counts as signed, so 128 is added before the high one is cut off.
      const __m512i high =
          _mm512_srai_epi16(_mm512_add_epi16(values, _mm512_set1_epi16(128)), 8);
      RowBlock& block = to[b * rows + r];
      auto* bytes = reinterpret_cast<__m256i*>(block.values);
      _mm256_storeu_si256(bytes, _mm512_cvtepi16_epi8(high));
      _mm256_storeu_si256(bytes + 1, _mm512_cvtepi16_epi8(values));
      const std::int32_t sum =
          _mm512_reduce_add_epi32(_mm512_madd_epi16(values, _mm512_set1_epi16(1)));
      block.scale = largest / kLargest;
      block.scaled_sum = block.scale * static_cast<float>(sum);
      block.offset = -128 * sum;
    }
  }
}

TS_VNNI_INLINE __m512i Broadcast4(const std::uint8_t* at) {
  std::int32_t word;
  __builtin_memcpy(&word, at, sizeof word);
  return _mm512_set1_epi32(word);
}

TS_VNNI_INLINE __m512 LoadHalves(const std::uint8_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

// The 8 groups of one block, one register each, unsigned bytes.
template <WeightFormat kFormat>
TS_VNNI_INLINE void LoadGroups(const std::uint8_t* block, __m512i (&groups)[8]) {
  if constexpr (kFormat == WeightFormat::kQ4_1) {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      const __m512i bytes = _mm512_loadu_si512(block + g * 64);
      groups[g] = _mm512_and_si512(bytes, mask);
      groups[4 + g] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
    }
  } else {
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) groups[g] = _mm512_loadu_si512(block + g * 64);
  }
}

// Sums of `kCount` rows with one block, taken side by side: a sum waits 4 cycles for each product.
template <WeightFormat kFormat, int kCount>
TS_VNNI_INLINE void BlockSums(const __m512i (&groups)[8], const RowBlock* x,
                              __m512i (&sums)[kCount]) {
  __m512i high[kCount];
#pragma GCC unroll 4
  for (int r = 0; r < kCount; ++r) {
    high[r] = _mm512_setzero_si512();
    sums[r] = kFormat == WeightFormat::kQ4_1 ? _mm512_setzero_si512()
                                             : _mm512_set1_epi32(x[r].offset);
  }
#pragma GCC unroll 8
  for (int g = 0; g < 8; ++g) {
#pragma GCC unroll 4
    for (int r = 0; r < kCount; ++r) {
      const std::uint8_t* at = x[r].values + Place(g);
      high[r] = _mm512_dpbusd_epi32(high[r], groups[g], Broadcast4(at));
      sums[r] = _mm512_dpbusd_epi32(sums[r], groups[g], Broadcast4(at + kBlock));
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kCount; ++r) {
    sums[r] = _mm512_add_epi32(sums[r], _mm512_slli_epi32(high[r], 8));
  }
}

template <WeightFormat kFormat, int kCount>
TS_VNNI_INLINE void AddRows(const __m512i (&groups)[8], __m512 d, __m512 minimum,
                            const RowBlock* x, __m512* total) {
  __m512i sums[kCount];
  BlockSums<kFormat, kCount>(groups, x, sums);
#pragma GCC unroll 4
  for (int r = 0; r < kCount; ++r) {
    const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale));
    total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r]), scale, total[r]);
    if constexpr (kFormat == WeightFormat::kQ4_1) {
      total[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x[r].scaled_sum), total[r]);
    }
  }
}

// One pass over a tile's weights for kRows activation rows.
template <WeightFormat kFormat, int kRows>
TS_VNNI void Step(const PackedWeight& weight, std::size_t tile, const RowBlock* x, float* out) {
  constexpr bool kQ4 = kFormat == WeightFormat::kQ4_1;
  const std::uint8_t* data = weight.tile(tile);
  const std::size_t blocks = weight.blocks();
  __m512 total[kRows];
  // Lines that 16 rows write are asked for before, or the stores of one pass hold up the next.
  for (int r = 0; r < kRows; ++r) __builtin_prefetch(out + r * weight.rows(), 1);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[r] = _mm512_loadu_ps(weight.bias(tile));
  for (std::size_t b = 0; b < blocks; ++b, x += kRows) {
    const std::uint8_t* block = data + (kQ4 ? b * kQ4BlockBytes : Q8Groups(b));
    if constexpr (kRows >= kPrefetchRows) {
#pragma GCC unroll 9
      for (std::size_t line = 0; line < (kQ4 ? kQ4BlockBytes : kQ8PairBytes / 2); line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(block + line + kPrefetchBytes), _MM_HINT_T0);
      }
    }
    __m512i groups[8];
    LoadGroups<kFormat>(block, groups);
    const __m512 d = LoadHalves(kQ4 ? block + kQ4GroupBytes : data + Q8Scales(b));
    __m512 minimum = _mm512_setzero_ps();
    if constexpr (kQ4) minimum = LoadHalves(block + kQ4GroupBytes + kScaleBytes);
#pragma GCC unroll 8
    for (int r = 0; r + 1 < kRows; r += 2) {
      AddRows<kFormat, 2>(groups, d, minimum, x + r, total + r);
    }
    if constexpr (kRows % 2 == 1) {
      AddRows<kFormat, 1>(groups, d, minimum, x + kRows - 1, total + kRows - 1);
    }
  }
  const std::size_t left = std::min<std::size_t>(kTileRows, weight.rows() - tile * kTileRows);
  const auto mask = static_cast<__mmask16>((1u << left) - 1);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    _mm512_mask_storeu_ps(out + r * weight.rows(), mask, total[r]);
  }
}

template <WeightFormat kFormat>
TS_VNNI void TileOf(const PackedWeight& weight, std::size_t tile, const RowBlock* x,
                    std::size_t rows, float* out) {
  switch (rows) {
    case 16: return Step<kFormat, 16>(weight, tile, x, out);
    case 15: return Step<kFormat, 15>(weight, tile, x, out);
    case 14: return Step<kFormat, 14>(weight, tile, x, out);
    case 13: return Step<kFormat, 13>(weight, tile, x, out);
    case 12: return Step<kFormat, 12>(weight, tile, x, out);
    case 11: return Step<kFormat, 11>(weight, tile, x, out);
    case 10: return Step<kFormat, 10>(weight, tile, x, out);
    case 9: return Step<kFormat, 9>(weight, tile, x, out);
    case 8: return Step<kFormat, 8>(weight, tile, x, out);
    case 7: return Step<kFormat, 7>(weight, tile, x, out);
    case 6: return Step<kFormat, 6>(weight, tile, x, out);
    case 5: return Step<kFormat, 5>(weight, tile, x, out);
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

const LinearOps& Avx512VnniLinear() {
  static const LinearOps ops = {kMaxRows, Quantise, Tile};
  return ops;
}

}  // namespace ts
#endif
