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
  const bool receives = config_.role == Role::kDecode && request.peer != 0;
  const auto* retracted = std::get_if<Retracted>(&request.state);
  const std::int32_t in_image = retracted != nullptr ? retracted->image.scheduled : 0;
  Match match;
  if (request.read_prefix_cache) {
    const bool look_below = request.read_host && !receives && in_image == 0;
    match = cache_.Find(Findable(request), request.rank.arrival, look_below);
  } else {
    cache_.Forget();
  }
  const std::int32_t cached = match.blocks * config_.block_size;
  const bool restores = in_image > cached;
  const bool filled = receives || restores || match.looks_below();
  const std::int32_t chunk = filled ? 0 : NextChunk(request, cached, build);
  if (!filled && chunk == 0) {
    build.MarkDenied();
    return false;
  }
  // Behind a hand-over the first decode needs its place at once.
  const bool one_more = receives && request.max_tokens > 1;
  const std::int32_t columns = config_.BlocksFor(request.known() + (one_more ? 1 : 0));
  const Room room{.needed = (columns - match.blocks) * num_token_groups_ + num_state_groups_ +
                            match.loads,
                  .available = cache_.pool().available() - match.idle,
                  .running = static_cast<std::int32_t>(running_.size()) * num_token_groups_};
  if (!MayAdmit(room)) return DropFirstPin() && TryAdmit(request, build);

  Held held = Occupy(match, columns, receives || restores);
  held.found = restores || receives ? 0 : cached;
  waiting_.Remove(request, last_now_);
  InsertRunning(request);
  if (receives) {
    AdmitReceiving(request, std::move(held), match.blocks, build);
  } else if (restores) {
    AdmitRestoring(request, std::move(held), match.blocks, build);
  } else if (filled) {
    AdmitLoading(request, std::move(held), build);
  } else {
    Apply(request.state, event::Admit{std::move(held)}, trail_);
    AddChunk(request, chunk, build);
  }
  return true;
}

// Blocks for all known tokens at once: a prefill never stops half way for want of blocks. What was
// found here is shared first, so that nothing of it makes room for what is to come from below.
// `own_states`: whoever fills the blocks fills a state too, and none that was found is read.
Held Scheduler::Occupy(const Match& match, std::int32_t columns, bool own_states) {
  Held held;
  held.slot = tables_.Open();
  held.groups.resize(config_.groups.size());
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    const bool state = config_.groups[g].kind == CacheGroup::Kind::kState;
    held.groups[g].reserve(state ? 2 : static_cast<std::size_t>(columns) + 1);
    held.groups[g].resize(state ? 2 : static_cast<std::size_t>(match.blocks));
  }
  for (const bool below : {false, true}) {
    for (const Found& found : cache_.found()) {
      const auto g = static_cast<std::size_t>(found.group);
      const bool state = config_.groups[g].kind == CacheGroup::Kind::kState;
      if (found.below != below || (state && (below || own_states))) continue;
      const std::int32_t column = state ? 0 : found.column;
      BlockLease& block = held.groups[g][static_cast<std::size_t>(column)];
      block = below ? cache_.Take() : cache_.Share(found.block);
      tables_.Put(held.slot, found.group, column, block.id());
    }
    if (match.loads == 0) break;
  }
  held.columns = match.blocks;
  while (held.columns < columns) AddColumn(held);
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind != CacheGroup::Kind::kState) continue;
    held.groups[g][1] = cache_.Take();
    const auto section = static_cast<std::int32_t>(g);
    tables_.Put(held.slot, section, 1, held.groups[g][1].id());
    // A state that somebody fills is read where it is written.
    const bool filled = held.groups[g][0].id() == kNoBlock && (own_states || match.state_loads > 0);
    if (filled) tables_.Put(held.slot, section, 0, held.groups[g][1].id());
  }
  held.scheduled = match.blocks * config_.block_size;
  held.published = match.blocks;
  held.cache_generation = cache_.generation();
  return held;
}

}  // namespace tokenspeed
