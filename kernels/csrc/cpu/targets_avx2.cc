// Eight lanes.
#include "cpu/vector_ops.h"

#if TS_X86
#include <immintrin.h>

#define TS_FN __attribute__((target("avx2,fma")))
#define TS_INLINE TS_FN __attribute__((always_inline)) inline
#define TS_OPS Avx2Ops

namespace ts {
namespace {

using VecF = __m256;
constexpr int kWidth = 8;
constexpr int kMaxPanel = 2;

TS_INLINE VecF Load(const float* from) { return _mm256_loadu_ps(from); }
TS_INLINE void Store(float* to, VecF v) { _mm256_storeu_ps(to, v); }
TS_INLINE VecF Set1(float x) { return _mm256_set1_ps(x); }
TS_INLINE VecF Fma(VecF a, VecF b, VecF c) { return _mm256_fmadd_ps(a, b, c); }
TS_INLINE VecF Max(VecF a, VecF b) { return _mm256_max_ps(a, b); }
// `then` in the lanes where a > b.
TS_INLINE VecF IfGreater(VecF a, VecF b, VecF then, VecF otherwise) {
  return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
TS_INLINE float Sum(VecF v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
TS_INLINE float MaxOf(VecF v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
TS_INLINE VecF Sums(const VecF (&rows)[kWidth]) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(rows[0], rows[1]),
                                  _mm256_hadd_ps(rows[2], rows[3]));
  const __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(rows[4], rows[5]),
                                  _mm256_hadd_ps(rows[6], rows[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
TS_INLINE VecF Round(VecF v) {
  return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// v * 2^n for whole n in [-126, 127].
TS_INLINE VecF Scale(VecF v, VecF n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
TS_INLINE VecF LoadBf16(const std::uint16_t* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

}  // namespace
}  // namespace ts

#include "cpu/vector/all.inc"
#endif
