#include "cpu/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/huge_memory.h"

namespace ts {
namespace {

std::size_t TileBytes(WeightFormat format, std::size_t blocks) {
  if (format == WeightFormat::kQ4_1) return blocks * kQ4BlockBytes;
  return (blocks + 1) / 2 * kQ8PairBytes;
}

// Activations that every tile passes over before the next are taken: they stay in the
// second-level cache, and a tile in the first.
constexpr std::size_t kChunkRows = 128;

constexpr std::size_t kPortableRows = 4;

void QuantisePortable(const float* x, std::size_t rows, std::size_t blocks, RowBlock* to) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t b = 0; b < blocks; ++b) {
      const float* from = x + (r * blocks + b) * kBlock;
      float largest = 0.0f;
      for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(from[i]));
      const float inverse = largest > kNegligible ? kLargest / largest : 0.0f;
      std::int16_t values[kBlock];
      std::int32_t sum = 0;
      for (int i = 0; i < kBlock; ++i) {
        values[i] = static_cast<std::int16_t>(std::nearbyint(from[i] * inverse));
        sum += values[i];
      }
      RowBlock& block = to[b * rows + r];
      std::memcpy(block.values, values, sizeof values);
      block.scale = largest / kLargest;
      block.scaled_sum = block.scale * static_cast<float>(sum);
      block.offset = -128 * sum;
    }
  }
}

float Half(const std::uint8_t* at) {
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return HalfToFloat(half);
}

// Adds the product of one block of one weight row with one block of activations.
void AddBlock(WeightFormat format, const std::uint8_t* groups, const std::uint8_t* scales, int row,
              const RowBlock& x, float& total) {
  std::int16_t values[kBlock];
  std::memcpy(values, x.values, sizeof values);
  if (format == WeightFormat::kQ4_1) {
    std::int32_t sum = 0;
    for (int i = 0; i < kBlock / 2; ++i) {
      const std::uint8_t byte = groups[(i / 4) * 64 + row * 4 + i % 4];
      sum += (byte & 15) * values[i] + (byte >> 4) * values[16 + i];
    }
    total += Half(scales + 2 * row) * x.scale * static_cast<float>(sum);
    total += Half(scales + kScaleBytes + 2 * row) * x.scaled_sum;
    return;
  }
  std::int32_t sum = x.offset;
  for (int i = 0; i < kBlock; ++i) sum += groups[(i / 4) * 64 + row * 4 + i % 4] * values[i];
  total += Half(scales + 2 * row) * x.scale * static_cast<float>(sum);
}

void TilePortable(const PackedWeight& weight, std::size_t tile, const RowBlock* x,
                  std::size_t rows, float* out) {
  const std::uint8_t* data = weight.tile(tile);
  const bool q4 = weight.format() == WeightFormat::kQ4_1;
  const int width =
      static_cast<int>(std::min<std::size_t>(kTileRows, weight.rows() - tile * kTileRows));
  for (std::size_t r = 0; r < rows; ++r) {
    for (int row = 0; row < width; ++row) {
      float total = weight.bias(tile)[row];
      for (std::size_t b = 0; b < weight.blocks(); ++b) {
        const std::uint8_t* groups = data + (q4 ? b * kQ4BlockBytes : Q8Groups(b));
        const std::uint8_t* scales = q4 ? groups + kQ4GroupBytes : data + Q8Scales(b);
        AddBlock(weight.format(), groups, scales, row, x[b * rows + r], total);
      }
      out[r * weight.rows() + row] = total;
    }
  }
}

const LinearOps& Ops(Isa isa) {
#if TS_X86
  if (isa == Isa::kAvx512Vnni) return Avx512VnniLinear();
  if (isa == Isa::kAvx2) return Avx2Linear();
#endif
  (void)isa;
  return PortableLinear();
}

}  // namespace

float HalfToFloat(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = (half >> 10) & 31;
  const std::uint32_t mantissa = half & 1023;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

PackedWeight::PackedWeight(WeightFormat format, const std::uint8_t* data, std::size_t rows,
                           std::size_t columns, const float* bias)
    : format_(format),
      rows_(rows),
      columns_(columns),
      tile_bytes_(TileBytes(format, columns / kBlock)),
      memory_(AllocateWeights(bytes() + tiles() * kTileRows * sizeof(float))) {
  auto* packed_bias = reinterpret_cast<float*>(this->data() + bytes());
  if (bias != nullptr) std::copy_n(bias, rows, packed_bias);
  bias_ = packed_bias;
  const std::size_t row_bytes = blocks() * (format == WeightFormat::kQ4_1 ? 20 : 34);
  for (std::size_t row = 0; row < rows; ++row) {
    if (format == WeightFormat::kQ4_1) {
      PackQ4(data + row * row_bytes, row);
    } else {
      PackQ8(data + row * row_bytes, row);
    }
  }
}

void PackedWeight::PackQ4(const std::uint8_t* row_data, std::size_t row) {
  std::uint8_t* tile = data() + row / kTileRows * tile_bytes_;
  const std::size_t lane = row % kTileRows;
  for (std::size_t b = 0; b < blocks(); ++b) {
    const std::uint8_t* from = row_data + b * 20;
    std::uint8_t* to = tile + b * kQ4BlockBytes;
    for (int g = 0; g < 4; ++g) std::memcpy(to + g * 64 + lane * 4, from + 4 + g * 4, 4);
    std::memcpy(to + kQ4GroupBytes + lane * 2, from, 2);
    std::memcpy(to + kQ4GroupBytes + kScaleBytes + lane * 2, from + 2, 2);
  }
}

void PackedWeight::PackQ8(const std::uint8_t* row_data, std::size_t row) {
  std::uint8_t* tile = data() + row / kTileRows * tile_bytes_;
  const std::size_t lane = row % kTileRows;
  for (std::size_t b = 0; b < blocks(); ++b) {
    const std::uint8_t* from = row_data + b * 34;
    std::uint8_t* to = tile + Q8Groups(b);
    for (int i = 0; i < kBlock; ++i) {
      to[(i / 4) * 64 + lane * 4 + i % 4] = static_cast<std::uint8_t>(from[2 + i] ^ 0x80);
    }
    std::memcpy(tile + Q8Scales(b) + lane * 2, from, 2);
  }
}

const LinearOps& PortableLinear() {
  static const LinearOps ops = {kPortableRows, QuantisePortable, TilePortable};
  return ops;
}

void Linear(Isa isa, const PackedWeight& weight, const float* x, float* out, std::size_t rows) {
  Require(isa);
  const LinearOps& ops = Ops(isa);
  const std::size_t blocks = weight.blocks();
  // Grows and is kept: a step runs hundreds of products and must not allocate in each.
  thread_local std::vector<RowBlock> scratch;
  if (const std::size_t size = std::min(kChunkRows, rows) * blocks; scratch.size() < size) {
    scratch.resize(size);
  }
  for (std::size_t begin = 0; begin < rows; begin += kChunkRows) {
    const std::size_t count = std::min(kChunkRows, rows - begin);
    // As few passes as possible over the weights, and all of about the same number of rows.
    const std::size_t passes = (count + ops.max_rows - 1) / ops.max_rows;
    const auto first = [&](std::size_t pass) { return count * pass / passes; };
    for (std::size_t p = 0; p < passes; ++p) {
      ops.quantise(x + (begin + first(p)) * weight.columns(), first(p + 1) - first(p), blocks,
                   scratch.data() + first(p) * blocks);
    }
    for (std::size_t tile = 0; tile < weight.tiles(); ++tile) {
      float* to = out + begin * weight.rows() + tile * kTileRows;
      for (std::size_t p = 0; p < passes; ++p) {
        ops.tile(weight, tile, scratch.data() + first(p) * blocks, first(p + 1) - first(p),
                 to + first(p) * weight.rows());
      }
    }
  }
}

}  // namespace ts
