// Operators written once over a vector type and compiled for each instruction set: vector/*.inc
// hold the code, targets_<isa>.cc include them. All pointers are dense row-major float32 unless
// they say otherwise; outputs never overlap inputs. One calling thread, no allocation that
// outlives a call except scratch kept per thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/isa.h"

namespace ts {

// See tokenspeed_kernels/rope/op.py.
struct RopeArgs {
  const float* qkv;  // [tokens, (heads + 2 kv_heads) head_dim]
  float* q;          // [tokens, heads, head_dim], written
  const std::int32_t* positions;
  const float* cos_sin;  // [*, rotary_dim]
  const std::int64_t* slots;
  void* k_cache;  // [*, kv_heads, head_dim], float32, or bfloat16 where kv_bf16
  void* v_cache;
  const float* q_norm;  // [head_dim], or null with k_norm
  const float* k_norm;
  std::size_t tokens, heads, kv_heads, head_dim, rotary_dim;
  float eps;
  bool kv_bf16;
};

// See tokenspeed_kernels/attention/op.py. head_dim is a multiple of 16.
struct AttentionArgs {
  const float* q;       // [tokens, heads, head_dim]
  float* out;           // the same
  const void* k_cache;  // [*, block_size, kv_heads, head_dim]
  const void* v_cache;
  const std::int32_t* block_tables;    // [rows, max_blocks]
  const std::int32_t* cu_query_lens;   // [rows + 1]
  const std::int32_t* context_lens;    // [rows]
  std::size_t rows, max_blocks, block_size, heads, kv_heads, head_dim;
  float scale;
  bool kv_bf16;
};

// Scratch on the stack is sized for this; the specs state it.
inline constexpr std::size_t kMaxHeadDim = 256;

// The largest logits of a row, by chunks of this many.
inline constexpr std::size_t kChunk = 64;

struct VectorOps {
  void (*rms_norm)(const float* x, const float* weight, float* out, std::size_t rows,
                   std::size_t dim, float eps);
  void (*add_rms_norm)(const float* x, float* residual, const float* weight, float* out,
                       std::size_t rows, std::size_t dim, float eps);
  void (*silu_mul)(const float* x, float* out, std::size_t rows, std::size_t inner);
  void (*rope_kv_write)(const RopeArgs& args);
  void (*paged_attention)(const AttentionArgs& args);
  // maxima[i] = the largest of values [i * kChunk, (i + 1) * kChunk), the last chunk may be short.
  void (*chunk_maxima)(const float* values, std::size_t count, float* maxima);
  // Sum of exp((values[i] - shift) * factor).
  double (*sum_exp)(const float* values, std::size_t count, float shift, float factor);
  // `counts`: how often each token was, its sign bit set where the prompt holds it.
  void (*penalise)(float* logits, const std::int16_t* counts, std::size_t count, float repetition,
                   float presence, float frequency);
};

// Throws where this CPU cannot run `isa` (see Require).
const VectorOps& OpsFor(Isa isa);

const VectorOps& PortableOps();
#if TS_X86
const VectorOps& Avx2Ops();
const VectorOps& Avx512Ops();
#endif

}  // namespace ts
