// From logits to tokens. The definitions are in tokenspeed_kernels/sampling/op.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/vector_ops.h"

namespace ts {

struct SampleArgs {
  const float* logits;  // [rows, vocab]
  std::size_t rows, vocab;
  const float* temperature;  // each [rows]
  const std::int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const std::int64_t* seeds;
  const std::int64_t* positions;
  std::int32_t* tokens;
};
void Sample(const VectorOps& ops, const SampleArgs& args);

struct LogSoftmaxArgs {
  const float* logits;  // [rows, vocab]
  std::size_t rows, vocab, k;
  const std::int32_t* chosen;  // [rows]
  float* chosen_logprob;       // [rows]
  float* top_values;           // [rows, k]
  std::int32_t* top_ids;       // [rows, k]
};
void LogSoftmaxTopk(const VectorOps& ops, const LogSoftmaxArgs& args);

}  // namespace ts
