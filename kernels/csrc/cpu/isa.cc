#include "cpu/isa.h"

#include <stdexcept>
#include <string>

namespace ts {
namespace {

struct Supported {
  bool avx2 = false;
  bool avx512 = false;
  bool vnni = false;
};

Supported Detect() {
  Supported s;
#if TS_X86
  __builtin_cpu_init();
  s.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  s.avx512 = s.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  s.vnni = s.avx512 && __builtin_cpu_supports("avx512vnni");
#endif
  return s;
}

const char* Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "AVX2";
    case Isa::kAvx512: return "AVX-512";
    case Isa::kAvx512Vnni: return "AVX-512 VNNI";
  }
  return "unknown";
}

}  // namespace

bool Supports(Isa isa) {
  static const Supported supported = Detect();
  switch (isa) {
    case Isa::kPortable: return true;
    case Isa::kAvx2: return supported.avx2;
    case Isa::kAvx512: return supported.avx512;
    case Isa::kAvx512Vnni: return supported.vnni;
  }
  return false;
}

void Require(Isa isa) {
  if (!Supports(isa)) {
    throw std::runtime_error(std::string("this CPU cannot run ") + Name(isa) +
                             " kernels; make the plan on the machine that runs it");
  }
}

}  // namespace ts
