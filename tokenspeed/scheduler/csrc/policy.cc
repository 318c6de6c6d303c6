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

std::int32_t ChooseReplica(std::span<const Replica> replicas, std::int64_t slack) {
  std::int64_t least = 0;
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    least = i == 0 ? replicas[i].load : std::min(least, replicas[i].load);
  }
  std::int32_t best = -1;
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i].load > least + slack) continue;
    const Replica* than = best < 0 ? nullptr : &replicas[static_cast<std::size_t>(best)];
    if (than == nullptr || replicas[i].cached > than->cached ||
        (replicas[i].cached == than->cached && replicas[i].load < than->load)) {
      best = static_cast<std::int32_t>(i);
    }
  }
  return best;
}

bool MayAdmit(const Room& room) { return room.needed + room.running <= room.available; }

}  // namespace tokenspeed
