#include "cpu/vector_ops.h"

namespace ts {

const VectorOps& OpsFor(Isa isa) {
  Require(isa);
#if TS_X86
  if (isa == Isa::kAvx512 || isa == Isa::kAvx512Vnni) return Avx512Ops();
  if (isa == Isa::kAvx2) return Avx2Ops();
#endif
  return PortableOps();
}

}  // namespace ts
