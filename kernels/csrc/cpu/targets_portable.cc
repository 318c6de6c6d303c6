// Four lanes in the compiler's own vector type: any CPU.
#include "cpu/vector_ops.h"

#define TS_FN
#define TS_INLINE __attribute__((always_inline)) inline
#define TS_OPS PortableOps

namespace ts {
namespace {

using VecF = float __attribute__((vector_size(16)));
using VecI = std::int32_t __attribute__((vector_size(16)));
constexpr int kWidth = 4;
constexpr int kMaxPanel = 2;

TS_INLINE VecF Load(const float* from) {
  VecF v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}
TS_INLINE void Store(float* to, VecF v) { __builtin_memcpy(to, &v, sizeof v); }
TS_INLINE VecF Set1(float x) { return VecF{x, x, x, x}; }
TS_INLINE VecF Fma(VecF a, VecF b, VecF c) { return a * b + c; }
TS_INLINE VecF Max(VecF a, VecF b) { return a > b ? a : b; }
// `then` in the lanes where a > b.
TS_INLINE VecF IfGreater(VecF a, VecF b, VecF then, VecF otherwise) {
  return a > b ? then : otherwise;
}
TS_INLINE float Sum(VecF v) { return (v[0] + v[1]) + (v[2] + v[3]); }
TS_INLINE float MaxOf(VecF v) {
  const float a = v[0] > v[1] ? v[0] : v[1];
  const float b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}
TS_INLINE VecF Sums(const VecF (&rows)[kWidth]) {
  return VecF{Sum(rows[0]), Sum(rows[1]), Sum(rows[2]), Sum(rows[3])};
}
TS_INLINE VecF Round(VecF v) {
  // Adding 1.5 * 2^23 leaves no bits for a fraction. |v| is below 2^22 here.
  const VecF magic = Set1(12582912.0f);
  return (v + magic) - magic;
}
// v * 2^n for whole n in [-126, 127].
TS_INLINE VecF Scale(VecF v, VecF n) {
  const VecI bits = (__builtin_convertvector(n, VecI) + 127) << 23;
  return v * reinterpret_cast<VecF>(bits);
}
TS_INLINE VecF LoadBf16(const std::uint16_t* from) {
  const VecI bits = {from[0], from[1], from[2], from[3]};
  return reinterpret_cast<VecF>(bits << 16);
}

}  // namespace
}  // namespace ts

#include "cpu/vector/all.inc"
