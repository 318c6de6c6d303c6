#include "config.h"

#include <cmath>
#include <stdexcept>

namespace tokenspeed {

void Require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

void Config::Validate() const {
  Require(num_blocks >= 2, "num_blocks must be at least 2: block 0 is the null block");
  Require(block_size >= 1, "block_size must be positive");
  Require(max_running >= 1, "max_running must be positive");
  Require(max_model_len >= 1, "max_model_len must be positive");
  Require(max_step_tokens >= max_running,
          "max_step_tokens must be at least max_running, or decodes would wait for budget");
  Require(in_flight_depth == 0 || in_flight_depth == 1, "in_flight_depth must be 0 or 1");
  Require(std::isfinite(ageing_s) && ageing_s > 0, "ageing_s must be positive seconds");
}

}  // namespace tokenspeed
