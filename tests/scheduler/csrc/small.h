// The configuration that tests of the whole scheduler begin with: few blocks of 4 tokens.
#pragma once

#include "scheduler.h"

namespace tokenspeed {

inline Config Small() {
  return {.num_blocks = 17,
          .block_size = 4,
          .max_running = 3,
          .max_step_tokens = 16,
          .max_model_len = 40,
          .prefix_cache = true,
          .chunked_prefill = true,
          .in_flight_depth = 0,
          .digest_key = {1, 2}};
}

}  // namespace tokenspeed
