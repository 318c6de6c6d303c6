// Instruction sets that the kernels are written for, chosen at run time.
#pragma once

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TS_X86 1
#else
#define TS_X86 0
#endif

namespace ts {

// The values cross into Python; do not renumber.
enum class Isa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Vnni = 3 };

// True where this CPU (and this build) can run kernels of `isa`.
bool Supports(Isa isa);

// Throws std::runtime_error, with the way out, where `Supports` is false: a plan that was made
// for another machine must not end in an illegal instruction.
void Require(Isa isa);

}  // namespace ts
