// What one core can do, for benchmarks: the floors that kernels are held against.
#pragma once

#include <cstddef>

#include "cpu/isa.h"

namespace ts {

// Reads `bytes` of huge-page memory once in order; returns a value that depends on all of it.
// `memory` is 64-byte aligned, `bytes` a multiple of 256.
float ReadAll(Isa isa, const void* memory, std::size_t bytes);

// Runs `count` rounds of 12 independent int8 dot products of 64 bytes (128 operations each);
// without VNNI 0 rounds. Returns how many operations were done.
double DotRounds(Isa isa, std::size_t count);

}  // namespace ts
