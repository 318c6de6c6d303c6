#include "config.h"

#include <algorithm>
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
  Require(max_draft_tokens >= 0, "max_draft_tokens must not be negative");
  Require(max_step_tokens / max_running > max_draft_tokens,
          "max_step_tokens must be at least max_running * (1 + max_draft_tokens), or decodes would "
          "wait for budget");
  Require(in_flight_depth == 0 || in_flight_depth == 1, "in_flight_depth must be 0 or 1");
  Require(!groups.empty() && groups.size() <= 8, "groups must be one to eight cache groups");
  for (const CacheGroup& group : groups) {
    Require((group.kind == CacheGroup::Kind::kWindow) == (group.window > 0),
            "window must be positive tokens for a window group and 0 for every other");
  }
  Require(std::isfinite(ageing_s) && ageing_s > 0, "ageing_s must be positive seconds");
  Require(max_mixed_tokens >= 1, "max_mixed_tokens must be positive, or prompts would starve");
  Require(patience_steps >= 1, "patience_steps must be positive, or decodes would starve");
  Require(max_backlog_tokens >= 0, "max_backlog_tokens must not be negative");
  Require(backlog_steps >= 1, "backlog_steps must be positive");
  Require(std::isfinite(cache_lead_s) && cache_lead_s >= 0,
          "cache_lead_s must be seconds and not negative");
  Require(max_waiting >= 0, "max_waiting must not be negative");
  Require(num_host_blocks == 0 || num_host_blocks >= 2,
          "num_host_blocks must be 0, or at least 2: block 0 is the null block");
  Require(num_host_blocks > 0 || !(disk || remote), "stores need num_host_blocks: a host tier");
  Require(transfer_credits >= 2, "transfer_credits must be at least 2 blocks");
  Require(transfer_timeout_s > 0, "transfer_timeout_s must be positive seconds");
  Require(peer_timeout_s > 0, "peer_timeout_s must be positive seconds");
  Require(std::isfinite(absent_s) && absent_s >= 0, "absent_s must be seconds and not negative");
  Require(min_tail_tokens >= 0, "min_tail_tokens must not be negative");
  Require(layers_per_transfer >= 0, "layers_per_transfer must not be negative");
}

std::int32_t Config::num_token_groups() const {
  return static_cast<std::int32_t>(
      std::count_if(groups.begin(), groups.end(), [](const CacheGroup& group) {
        return group.kind != CacheGroup::Kind::kState;
      }));
}

std::vector<std::int32_t> Config::row_lengths() const {
  std::vector<std::int32_t> lengths;
  for (const CacheGroup& group : groups) {
    lengths.push_back(group.kind == CacheGroup::Kind::kState ? 2 : max_blocks_per_request());
  }
  return lengths;
}

std::int64_t Config::DemandOf(std::int64_t tokens) const {
  const std::int64_t states = num_groups() - num_token_groups();
  return static_cast<std::int64_t>(num_token_groups()) * BlocksFor(tokens) + 2 * states;
}

std::int64_t Config::max_request_tokens() const {
  const std::int64_t states = 2 * static_cast<std::int64_t>(num_groups() - num_token_groups());
  const std::int64_t blocks = num_blocks - 1 - states;
  if (blocks < num_token_groups()) return 0;
  const std::int64_t computed = num_token_groups() == 0
                                    ? max_model_len
                                    : blocks / num_token_groups() * block_size;
  return std::min<std::int64_t>(max_model_len, computed);
}

}  // namespace tokenspeed
