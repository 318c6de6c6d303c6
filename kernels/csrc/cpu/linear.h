// Products with quantised weights and activations rounded to 16 bits.
//
// The sum over a block of 32 inputs is taken in int32, exactly; the scales meet it in float32:
//   q4_1: w = d q + m   =>  sum w x ~ d s sum(q xq) + m s sum(xq)
//   q8_0: w = d (u - 128), u = q + 128 unsigned  =>  sum w x ~ d s (sum(u xq) - 128 sum(xq))
// where x ~ s xq, s = max|x| / 32639 over the block. So the one rounding beside that of float32 is
// that of x, at most s / 2 an element. The largest sum is 255 * 32 * 32639 < 2^31.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/isa.h"

namespace ts {

enum class WeightFormat { kQ4_1, kQ8_0 };

inline constexpr int kBlock = 32;     // weights per block
inline constexpr int kTileRows = 16;  // output rows that lie interleaved in memory

// Weights in the kernels' own order. Rows come in tiles of 16, the last padded with zeros; a tile
// holds its blocks in order of the input. Of each block, a group is 4 inputs of 16 rows, 64 bytes:
// byte 4 r + i belongs to row r, input 4 g + i of group g.
//   q4_1: 4 groups, low nibbles inputs 0..15 and high nibbles inputs 16..31 of the block; then
//         d[16], m[16] in fp16: 320 bytes.
//   q8_0: blocks go in pairs: d[16] of both in fp16, then 8 groups of u = q + 128 for each: 1088
//         bytes, one stream, groups aligned to a cache line. (A plane of scales of its own halves
//         the rate: its misses wait behind those of the groups.)
class PackedWeight {
 public:
  // `data`: rows of GGUF blocks, [rows, columns / 32 * block bytes]. `bias`: [rows] or null.
  // REQUIRES: columns is a positive multiple of 32.
  PackedWeight(WeightFormat format, const std::uint8_t* data, std::size_t rows,
               std::size_t columns, const float* bias);

  WeightFormat format() const { return format_; }
  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  std::size_t blocks() const { return columns_ / kBlock; }
  std::size_t tiles() const { return (rows_ + kTileRows - 1) / kTileRows; }
  std::size_t bytes() const { return tiles() * tile_bytes_; }
  const std::uint8_t* tile(std::size_t index) const { return data() + index * tile_bytes_; }
  // 16 floats, zeros where there is no bias.
  const float* bias(std::size_t tile_index) const { return bias_ + tile_index * kTileRows; }

 private:
  std::uint8_t* data() const { return reinterpret_cast<std::uint8_t*>(memory_.get()); }
  void PackQ4(const std::uint8_t* row_data, std::size_t row);
  void PackQ8(const std::uint8_t* row_data, std::size_t row);

  WeightFormat format_;
  std::size_t rows_;
  std::size_t columns_;
  std::size_t tile_bytes_;
  std::shared_ptr<std::byte> memory_;
  const float* bias_;  // behind the tiles, in the same memory
};

inline constexpr std::size_t kQ4GroupBytes = 256;
inline constexpr std::size_t kQ4BlockBytes = 320;
inline constexpr std::size_t kQ8GroupBytes = 512;
inline constexpr std::size_t kScaleBytes = 2 * kTileRows;

inline constexpr std::size_t kQ8PairBytes = 2 * (kScaleBytes + kQ8GroupBytes);

// Offsets of block `b` in a q8_0 tile.
inline constexpr std::size_t Q8Scales(std::size_t b) {
  return b / 2 * kQ8PairBytes + b % 2 * kScaleBytes;
}
inline constexpr std::size_t Q8Groups(std::size_t b) {
  return b / 2 * kQ8PairBytes + 2 * kScaleBytes + b % 2 * kQ8GroupBytes;
}

// 127 * 256 + 127, the largest value both of whose bytes are signed ones: 256 hi + lo.
inline constexpr float kLargest = 32639.0f;
// Blocks with no larger input count as zeros: the inverse of their scale could overflow.
inline constexpr float kNegligible = 1e-30f;

// One block of one row of activations.
struct RowBlock {
  std::uint8_t values[2 * kBlock];  // 32 of 16 bits, in an order that is each kernel's own
  float scale;                      // s
  float scaled_sum;                 // s sum(xq)       (q4_1)
  std::int32_t offset;              // -128 sum(xq)    (q8_0)
};

// out[rows, weight.rows()] = x[rows, weight.columns()] W^T + bias, row-major, dense.
// A row's result does not depend on the other rows. Not reentrant within a thread; uses the
// calling thread alone.
void Linear(Isa isa, const PackedWeight& weight, const float* x, float* out, std::size_t rows);

// What an instruction set offers to `Linear`. Both functions take at most `max_rows` rows at once.
struct LinearOps {
  std::size_t max_rows;
  // x[rows, blocks * 32] to to[blocks, rows]: rows innermost, so that a kernel reads forwards.
  void (*quantise)(const float* x, std::size_t rows, std::size_t blocks, RowBlock* to);
  // The 16 outputs of one tile for x[blocks, rows]; `out` points to those of the first row and
  // rows are weight.rows() apart.
  void (*tile)(const PackedWeight& weight, std::size_t tile, const RowBlock* x, std::size_t rows,
               float* out);
};

const LinearOps& PortableLinear();
#if TS_X86
const LinearOps& Avx2Linear();
const LinearOps& Avx512VnniLinear();
#endif

float HalfToFloat(std::uint16_t half);

}  // namespace ts
