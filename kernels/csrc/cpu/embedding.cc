#include "cpu/embedding.h"

#include <cstring>

namespace ts {
namespace {

float Half(const std::uint8_t* at) {
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return HalfToFloat(half);
}

void UnpackQ4(const std::uint8_t* block, float* out) {
  const float d = Half(block);
  const float m = Half(block + 2);
  for (int i = 0; i < kBlock / 2; ++i) {
    out[i] = d * static_cast<float>(block[4 + i] & 15) + m;
    out[kBlock / 2 + i] = d * static_cast<float>(block[4 + i] >> 4) + m;
  }
}

void UnpackQ8(const std::uint8_t* block, float* out) {
  const float d = Half(block);
  for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<std::int8_t>(block[2 + i]);
}

}  // namespace

void Embed(WeightFormat format, const std::uint8_t* table, std::size_t columns,
           const std::int32_t* tokens, std::size_t count, float* out) {
  const bool q4 = format == WeightFormat::kQ4_1;
  const std::size_t block_bytes = q4 ? 20 : 34;
  const std::size_t blocks = columns / kBlock;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t* row = table + static_cast<std::size_t>(tokens[i]) * blocks * block_bytes;
    for (std::size_t b = 0; b < blocks; ++b, out += kBlock) {
      if (q4) {
        UnpackQ4(row + b * block_bytes, out);
      } else {
        UnpackQ8(row + b * block_bytes, out);
      }
    }
  }
}

}  // namespace ts
