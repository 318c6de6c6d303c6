// Sixteen lanes.
#include "cpu/vector_ops.h"

#if TS_X86
#include <immintrin.h>

#define TS_FN __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define TS_INLINE TS_FN __attribute__((always_inline)) inline
#define TS_OPS Avx512Ops

namespace ts {
namespace {

using VecF = __m512;
constexpr int kWidth = 16;
constexpr int kMaxPanel = 4;

TS_INLINE VecF Load(const float* from) { return _mm512_loadu_ps(from); }
TS_INLINE void Store(float* to, VecF v) { _mm512_storeu_ps(to, v); }
TS_INLINE VecF Set1(float x) { return _mm512_set1_ps(x); }
TS_INLINE VecF Fma(VecF a, VecF b, VecF c) { return _mm512_fmadd_ps(a, b, c); }
TS_INLINE VecF Max(VecF a, VecF b) { return _mm512_max_ps(a, b); }
// `then` in the lanes where a > b.
TS_INLINE VecF IfGreater(VecF a, VecF b, VecF then, VecF otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), otherwise, then);
}
TS_INLINE float Sum(VecF v) { return _mm512_reduce_add_ps(v); }
TS_INLINE float MaxOf(VecF v) { return _mm512_reduce_max_ps(v); }

// [a0 + a2, b0 + b2, a1 + a3, b1 + b3] in each quarter.
TS_INLINE VecF Fold(VecF a, VecF b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
// The same over pairs: quarters of [a, b, c, d] from two folds.
TS_INLINE VecF FoldPairs(VecF ab, VecF cd) {
  const __m512d x = _mm512_castps_pd(ab);
  const __m512d y = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
// Lane i: the sum of rows[i]. A tree of folds: 45 instructions instead of 16 separate sums.
TS_INLINE VecF Sums(const VecF (&rows)[kWidth]) {
  __m512 quads[4];
  for (int i = 0; i < 4; ++i) {
    quads[i] = FoldPairs(Fold(rows[4 * i], rows[4 * i + 1]), Fold(rows[4 * i + 2], rows[4 * i + 3]));
  }
  // Quarter k of quads[i] holds a quarter of the sums of rows 4 i to 4 i + 3.
  const __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(quads[0], quads[1], 0x44),
                                 _mm512_shuffle_f32x4(quads[0], quads[1], 0xEE));
  const __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(quads[2], quads[3], 0x44),
                                 _mm512_shuffle_f32x4(quads[2], quads[3], 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
TS_INLINE VecF Round(VecF v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// v * 2^n for whole n.
TS_INLINE VecF Scale(VecF v, VecF n) { return _mm512_scalef_ps(v, n); }
TS_INLINE VecF LoadBf16(const std::uint16_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

}  // namespace
}  // namespace ts

#include "cpu/vector/all.inc"
#endif
