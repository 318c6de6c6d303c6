#include "policy.h"

#include <algorithm>

namespace tokenspeed {

Rank RankOf(double arrived_s, std::int32_t priority, double ageing_s, std::uint64_t arrival) {
  return {arrived_s - static_cast<double>(priority) * ageing_s, arrival};
}

std::int32_t ChunkOf(std::int32_t remaining, std::int32_t budget, std::int32_t step_tokens,
                     bool chunked) {
  if (chunked || remaining > step_tokens) return std::min(remaining, budget);
  return remaining <= budget ? remaining : 0;
}

std::int32_t StopAtBlock(std::int32_t scheduled, std::int32_t chunk, std::int32_t known,
                         std::int32_t block_size) {
  const std::int32_t last = std::min(scheduled + chunk, known - 1) / block_size * block_size;
  return last > scheduled ? last - scheduled : chunk;
}

bool MayAdmit(const Room& room) { return room.needed + room.running <= room.available; }

}  // namespace tokenspeed
