#include "cpu/measure.h"

#include <cstdint>

#if TS_X86
#include <immintrin.h>
#endif

namespace ts {
namespace {

float ReadPortable(const void* memory, std::size_t bytes) {
  const auto* values = static_cast<const float*>(memory);
  float sums[16] = {};
  for (std::size_t i = 0; i + 16 <= bytes / sizeof(float); i += 16) {
#pragma omp simd
    for (int j = 0; j < 16; ++j) sums[j] += values[i + j];
  }
  float sum = 0.0f;
  for (const float s : sums) sum += s;
  return sum;
}

#if TS_X86
__attribute__((target("avx512f"))) float Read512(const void* memory, std::size_t bytes) {
  const auto* at = static_cast<const char*>(memory);
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                    _mm512_setzero_ps()};
  for (std::size_t i = 0; i < bytes; i += 256) {
    for (int j = 0; j < 4; ++j) sums[j] = _mm512_add_ps(sums[j], _mm512_loadu_ps(at + i + 64 * j));
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]),
                                            _mm512_add_ps(sums[2], sums[3])));
}

__attribute__((target("avx512f,avx512vnni"))) int Dots512(std::size_t count) {
  __m512i sums[12];
  for (auto& sum : sums) sum = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(3);
  const __m512i b = _mm512_set1_epi8(2);
  for (std::size_t i = 0; i < count; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) sums[j] = _mm512_dpbusd_epi32(sums[j], a, b);
  }
  __m512i total = sums[0];
  for (const auto& sum : sums) total = _mm512_add_epi32(total, sum);
  return _mm512_reduce_add_epi32(total);
}
#endif

}  // namespace

float ReadAll(Isa isa, const void* memory, std::size_t bytes) {
  Require(isa);
#if TS_X86
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Vnni) return Read512(memory, bytes);
#endif
  return ReadPortable(memory, bytes);
}

double DotRounds(Isa isa, std::size_t count) {
  Require(isa);
#if TS_X86
  if (isa == Isa::kAvx512Vnni) {
    // Every sum is even, so this adds nothing; it keeps the rounds from being left out.
    return Dots512(count) % 2 * 1.0 + 12.0 * 128.0 * static_cast<double>(count);
  }
#endif
  (void)count;
  return 0.0;
}

}  // namespace ts
