#include "policy.h"

#include <algorithm>

namespace tokenspeed {

Rank RankOf(double arrived_s, std::int32_t priority, double ageing_s, std::uint64_t arrival,
            double lead_s) {
  return {arrived_s - static_cast<double>(priority) * ageing_s - lead_s, arrival};
}

double LeadOf(std::int64_t cached, std::int64_t prompt, double longest_s) {
  return longest_s * static_cast<double>(cached) / static_cast<double>(prompt);
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

bool PromptsGoAlone(const Mix& mix) { return mix.starved_steps >= mix.patience_steps; }

std::int32_t PromptBudget(const Mix& mix) {
  if (mix.decode_tokens == 0) return mix.step_tokens;
  // 2^30 chunks are more than any step.
  const std::int32_t doublings = std::min(mix.full_steps / mix.backlog_steps, 30);
  const std::int64_t grown = std::int64_t{mix.mixed_tokens} << doublings;
  const std::int64_t most = std::max(mix.mixed_tokens, mix.backlog_tokens);
  const std::int64_t room = mix.step_tokens - mix.decode_tokens;
  return static_cast<std::int32_t>(std::min({room, grown, most}));
}

std::int32_t ChooseVictim(std::span<const Candidate> candidates) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate* than = best < 0 ? nullptr : &candidates[static_cast<std::size_t>(best)];
    if (than == nullptr || candidates[i].frees > than->frees ||
        (candidates[i].frees == than->frees && candidates[i].rank > than->rank)) {
      best = static_cast<std::int32_t>(i);
    }
  }
  return best;
}

bool RestoresImage(std::int32_t in_image, std::int32_t cached) { return in_image > cached; }

std::int32_t WidthOf(const Width& width) {
  const std::int32_t wanted = std::min({1 + width.drafts, width.left, width.room});
  return width.to_block_end > 0 ? std::min(wanted, width.to_block_end) : wanted;
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

bool MayAdmit(const Room& room) {
  return room.available >= std::max(room.growing, room.promised);
}

}  // namespace tokenspeed
