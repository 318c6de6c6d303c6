// AVX2: the 16 rows of a tile are two registers. There is no product of unsigned and signed bytes
// into int32, so vpmaddubsw and vpmaddwd do it in two steps; the bytes are arranged so that the
// int16 in between cannot saturate.
#include "cpu/linear.h"

#if TS_X86
#include <immintrin.h>

#include <algorithm>

#define TS_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TS_AVX2_INLINE TS_AVX2 __attribute__((always_inline)) inline

namespace ts {
namespace {

TS_AVX2_INLINE __m256i Broadcast4(const std::int8_t* at) {
  std::int32_t word;
  __builtin_memcpy(&word, at, sizeof word);
  return _mm256_set1_epi32(word);
}

TS_AVX2_INLINE __m256 LoadHalves(const std::uint8_t* at) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}

// sum + w x over 4 bytes a lane. |w| <= 128 with |x| <= 127: the pair sum is at most
// 2 * 128 * 127 = 32512 < 32768.
TS_AVX2_INLINE __m256i Dot(__m256i sum, __m256i magnitude, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(magnitude, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Integer sums of one block for rows [8 half, 8 half + 8) of the tile.
template <WeightFormat kFormat>
TS_AVX2_INLINE __m256i BlockSum(const std::uint8_t* block, int half, const std::int8_t* x) {
  __m256i sum = _mm256_setzero_si256();
  if constexpr (kFormat == WeightFormat::kQ4_1) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int g = 0; g < 4; ++g) {
      const __m256i bytes =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + g * 64 + half * 32));
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
      sum = Dot(sum, _mm256_and_si256(bytes, mask), Broadcast4(x + g * 4));
      sum = Dot(sum, high, Broadcast4(x + 16 + g * 4));
    }
  } else {
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    for (int g = 0; g < 8; ++g) {
      const __m256i bytes =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + g * 64 + half * 32));
      // Back to signed, then |w| times x with the sign of w: unsigned 255 would saturate.
      const __m256i w = _mm256_xor_si256(bytes, flip);
      sum = Dot(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(Broadcast4(x + g * 4), w));
    }
  }
  return sum;
}

template <WeightFormat kFormat>
TS_AVX2 void TileOf(const PackedWeight& weight, std::size_t tile, const Activations& a,
                    std::size_t begin, std::size_t end, float* out) {
  constexpr bool kQ4 = kFormat == WeightFormat::kQ4_1;
  const std::uint8_t* data = weight.tile(tile);
  const std::size_t first = tile * kTileRows;
  const std::size_t left = std::min<std::size_t>(kTileRows, weight.rows() - first);
  for (std::size_t m = begin; m < end; ++m) {
    __m256 total[2] = {_mm256_loadu_ps(weight.bias(tile)), _mm256_loadu_ps(weight.bias(tile) + 8)};
    for (std::size_t b = 0; b < a.blocks; ++b) {
      const std::size_t at = m * a.blocks + b;
      const std::uint8_t* block = data + (kQ4 ? b * kQ4BlockBytes : Q8Groups(b));
      const std::uint8_t* scales = kQ4 ? block + kQ4GroupBytes : data + Q8Scales(b);
      for (int half = 0; half < 2; ++half) {
        const __m256i sum = BlockSum<kFormat>(block, half, a.values + at * kBlock);
        const __m256 d = LoadHalves(scales + half * 16);
        const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(a.scales[at]));
        total[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, total[half]);
        if constexpr (kQ4) {
          const __m256 minimum = LoadHalves(scales + kScaleBytes + half * 16);
          total[half] =
              _mm256_fmadd_ps(minimum, _mm256_set1_ps(a.scaled_sums[at]), total[half]);
        }
      }
    }
    alignas(32) float lanes[kTileRows];
    _mm256_store_ps(lanes, total[0]);
    _mm256_store_ps(lanes + 8, total[1]);
    std::copy_n(lanes, left, out + m * weight.rows() + first);
  }
}

void Tile(const PackedWeight& weight, std::size_t tile, const Activations& a, std::size_t begin,
          std::size_t end, float* out) {
  if (weight.format() == WeightFormat::kQ4_1) {
    TileOf<WeightFormat::kQ4_1>(weight, tile, a, begin, end, out);
  } else {
    TileOf<WeightFormat::kQ8_0>(weight, tile, a, begin, end, out);
  }
}

}  // namespace

const LinearOps& Avx2Linear() {
  static const LinearOps ops = {PortableLinear().quantise, Tile};
  return ops;
}

}  // namespace ts
#endif
