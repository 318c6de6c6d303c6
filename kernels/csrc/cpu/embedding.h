// Rows of a quantised table to float32, in GGUF block layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/linear.h"

namespace ts {

// out[count, columns] = rows tokens[i] of `table`. REQUIRES: columns is a multiple of 32.
void Embed(WeightFormat format, const std::uint8_t* table, std::size_t columns,
           const std::int32_t* tokens, std::size_t count, float* out);

}  // namespace ts
