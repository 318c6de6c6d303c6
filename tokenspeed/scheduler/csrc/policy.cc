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

bool MayAdmit(const Room& room) { return room.needed + room.running <= room.available; }

}  // namespace tokenspeed
