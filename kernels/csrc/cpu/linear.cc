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

// Grows and is kept: a step runs hundreds of products and must not allocate in each.
Activations Scratch(std::size_t rows, std::size_t columns) {
  thread_local std::vector<std::int8_t> values;
  thread_local std::vector<float> scales;
  thread_local std::vector<float> sums;
  thread_local std::vector<std::int32_t> offsets;
  const std::size_t blocks = columns / kBlock;
  if (values.size() < rows * columns) values.resize(rows * columns);
  if (scales.size() < rows * blocks) {
    scales.resize(rows * blocks);
    sums.resize(rows * blocks);
    offsets.resize(rows * blocks);
  }
  return {values.data(), scales.data(), sums.data(), offsets.data(), columns, blocks};
}

void QuantisePortable(const float* x, std::size_t rows, const Activations& a) {
  for (std::size_t block = 0; block < rows * a.blocks; ++block) {
    const float* from = x + block * kBlock;
    float largest = 0.0f;
    for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(from[i]));
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    std::int32_t sum = 0;
    for (int i = 0; i < kBlock; ++i) {
      const auto value = static_cast<std::int8_t>(std::nearbyint(from[i] * inverse));
      a.values[block * kBlock + i] = value;
      sum += value;
    }
    const float scale = largest / 127.0f;
    a.scales[block] = scale;
    a.scaled_sums[block] = scale * static_cast<float>(sum);
    a.offsets[block] = -128 * sum;
  }
}

float Half(const std::uint8_t* at) {
  std::uint16_t half;
  std::memcpy(&half, at, sizeof half);
  return HalfToFloat(half);
}

float BlockQ4(const std::uint8_t* block, int row, const Activations& a, std::size_t at) {
  const std::int8_t* x = a.values + at * kBlock;
  std::int32_t sum = 0;
  for (int i = 0; i < kBlock / 2; ++i) {
    const std::uint8_t byte = block[(i / 4) * 64 + row * 4 + i % 4];
    sum += (byte & 15) * x[i] + (byte >> 4) * x[16 + i];
  }
  const std::uint8_t* scales = block + kQ4GroupBytes + 2 * row;
  return Half(scales) * a.scales[at] * static_cast<float>(sum) +
         Half(scales + kScaleBytes) * a.scaled_sums[at];
}

float BlockQ8(const std::uint8_t* groups, const std::uint8_t* scales, int row,
              const Activations& a, std::size_t at) {
  const std::int8_t* x = a.values + at * kBlock;
  std::int32_t sum = a.offsets[at];
  for (int i = 0; i < kBlock; ++i) sum += groups[(i / 4) * 64 + row * 4 + i % 4] * x[i];
  return Half(scales + 2 * row) * a.scales[at] * static_cast<float>(sum);
}

void TilePortable(const PackedWeight& weight, std::size_t tile, const Activations& a,
                  std::size_t begin, std::size_t end, float* out) {
  const std::uint8_t* data = weight.tile(tile);
  const std::size_t first = tile * kTileRows;
  const int rows = static_cast<int>(std::min<std::size_t>(kTileRows, weight.rows() - first));
  for (std::size_t m = begin; m < end; ++m) {
    for (int row = 0; row < rows; ++row) {
      float sum = weight.bias(tile)[row];
      for (std::size_t b = 0; b < a.blocks; ++b) {
        const std::size_t at = m * a.blocks + b;
        sum += weight.format() == WeightFormat::kQ4_1
                   ? BlockQ4(data + b * kQ4BlockBytes, row, a, at)
                   : BlockQ8(data + Q8Groups(b), data + Q8Scales(b), row, a, at);
      }
      out[m * weight.rows() + first + row] = sum;
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
  static const LinearOps ops = {QuantisePortable, TilePortable};
  return ops;
}

void Linear(Isa isa, const PackedWeight& weight, const float* x, float* out, std::size_t rows) {
  Require(isa);
  const LinearOps& ops = Ops(isa);
  // A chunk of activations stays in the second-level cache while every tile passes over it.
  for (std::size_t begin = 0; begin < rows; begin += kMaxStep) {
    const std::size_t count = std::min(kMaxStep, rows - begin);
    const Activations a = Scratch(count, weight.columns());
    ops.quantise(x + begin * weight.columns(), count, a);
    float* to = out + begin * weight.rows();
    for (std::size_t tile = 0; tile < weight.tiles(); ++tile) {
      ops.tile(weight, tile, a, 0, count, to);
    }
  }
}

}  // namespace ts
