// The admission pass: who waits gets a slot, and the blocks of all its known tokens.
#include "scheduler.h"

#include <algorithm>
#include <utility>

#include "check.h"

namespace tokenspeed {

// Strictly in order: whoever is first and does not fit holds back the others, so that small
// requests cannot starve a large one.
void Scheduler::AdmitWaiting(StepBuilder& build) {
  while (!build.is_short() && !build.is_denied() && build.budget() > 0 && tables_.num_free() > 0) {
    Request* request = waiting_.first();
    if (request == nullptr || !TryAdmit(*request, build)) return;
  }
}

bool Scheduler::TryAdmit(Request& request, StepBuilder& build) {
  Match match;
  if (request.read_prefix_cache) {
    // At least the last token is computed: its logits are wanted.
    const auto whole = static_cast<std::size_t>((request.known() - 1) / config_.block_size);
    const std::span<const Digest> digests(request.digests);
    match = cache_.Find(digests.first(std::min(whole, digests.size())), request.rank.arrival);
  } else {
    cache_.Forget();
  }
  const std::int32_t cached = match.blocks * config_.block_size;
  const std::int32_t chunk = NextChunk(request, cached, build);
  const std::int32_t fresh = config_.BlocksFor(request.known()) - match.blocks;
  const Room room{.needed = fresh * num_token_groups_ + num_state_groups_,
                  .available = cache_.pool().available() - match.idle,
                  .running = static_cast<std::int32_t>(running_.size()) * num_token_groups_};
  if (chunk == 0) {
    build.MarkDenied();
    return false;
  }
  if (!MayAdmit(room)) return DropFirstPin() && TryAdmit(request, build);

  Held held = Occupy(request, match);
  waiting_.Remove(request, last_now_);
  const bool first = !std::exchange(request.admitted_before, true);
  Apply(request.state, event::Admit{std::move(held)}, trail_);
  InsertRunning(request);
  if (first) {
    counters_.prompt_tokens += static_cast<std::uint64_t>(request.prompt_len);
    counters_.cached_prompt_tokens += static_cast<std::uint64_t>(cached);
  }
  AddChunk(request, chunk, {.admitted = true, .cached = cached, .first = first}, build);
  return true;
}

// Blocks for all known tokens at once: a prefill never stops half way for want of blocks.
Held Scheduler::Occupy(const Request& request, const Match& match) {
  Held held;
  held.slot = tables_.Open();
  const std::int32_t total = config_.BlocksFor(request.known());
  held.groups.resize(config_.groups.size());
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    const bool state = config_.groups[g].kind == CacheGroup::Kind::kState;
    held.groups[g].reserve(state ? 2 : static_cast<std::size_t>(total) + 1);
    held.groups[g].resize(state ? 2 : static_cast<std::size_t>(match.blocks));
  }
  for (const Found& found : cache_.found()) {
    const auto g = static_cast<std::size_t>(found.group);
    const bool state = config_.groups[g].kind == CacheGroup::Kind::kState;
    const std::int32_t column = state ? 0 : found.column;
    held.groups[g][static_cast<std::size_t>(column)] = cache_.Share(found.block);
    tables_.Put(held.slot, found.group, column, found.block);
  }
  held.columns = match.blocks;
  while (held.columns < total) AddColumn(held);
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind != CacheGroup::Kind::kState) continue;
    held.groups[g][1] = cache_.Take();
    tables_.Put(held.slot, static_cast<std::int32_t>(g), 1, held.groups[g][1].id());
  }
  held.scheduled = match.blocks * config_.block_size;
  held.published = match.blocks;
  held.cache_generation = cache_.generation();
  return held;
}

}  // namespace tokenspeed
