// The admission pass: who waits gets a slot, and the blocks of all its known tokens.
#include "scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "check.h"

namespace tokenspeed {

// Strictly in order: whoever is first and does not fit holds back the others, so that small
// requests cannot starve a large one. Only those before `rank`, unless it is null; how many.
std::size_t Scheduler::AdmitBefore(const Rank* rank, StepBuilder& build) {
  std::size_t admitted = 0;
  while (!build.is_short() && !build.is_denied() && build.budget() > 0 && tables_.num_free() > 0) {
    Request* request = waiting_.first();
    if (request == nullptr || (rank != nullptr && *rank < request->rank)) break;
    if (!TryAdmit(*request, build)) break;
    ++admitted;
  }
  return admitted;
}

bool Scheduler::TryAdmit(Request& request, StepBuilder& build) {
  const bool receives = config_.role == Role::kDecode && request.peer != 0;
  const Image* image = ImageOf(request.state);
  const std::int32_t in_image = image != nullptr ? image->scheduled : 0;
  Match match;
  if (request.read_prefix_cache) {
    const bool look_below = request.read_host && !receives && in_image == 0;
    const Tailed tailed{request.root, std::span(request.tokens).first(request.tokens.size() - 1)};
    match = cache_.Find(Findable(request), request.rank.arrival, look_below, &tailed);
  } else {
    cache_.Forget();
  }
  const std::int32_t whole = match.blocks * config_.block_size;
  const bool restores = RestoresImage(in_image, whole + match.tail);
  const bool filled = receives || restores || match.looks_below();
  if (filled) match.tail = 0;
  std::int32_t chunk = filled ? 0 : NextChunk(request, whole + match.tail, build);
  if (!filled && chunk == 0) {
    build.MarkDenied();
    return false;
  }
  // Behind a hand-over the first decode needs its place at once.
  const bool one_more = receives && request.max_tokens > 1;
  const std::int32_t columns = config_.BlocksFor(request.known() + (one_more ? 1 : 0));
  if (IsStillBlocked(request, match)) return false;
  const bool own_states = receives || restores;
  std::vector<Claim::Entry> claimed = ClaimBlocks(request, match, columns, own_states);
  if (claimed.empty() && match.tail > 0) {
    // While it is copied, the tail's block is one more than the request needs.
    match.tail = 0;
    chunk = NextChunk(request, whole, build);
    if (chunk == 0) {
      build.MarkDenied();
      return false;
    }
    claimed = ClaimBlocks(request, match, columns, own_states);
  }
  if (claimed.empty()) {
    if (DropFirstPin()) return TryAdmit(request, build);
    blocked_ = {request.rank.arrival, cache_.pool().num_rests(), running_.size(), match};
    return false;
  }

  Held held = Occupy(request, match, columns, claimed, own_states);
  CopyTail(held, match, claimed, build);
  held.found = restores || receives ? 0 : held.scheduled;
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

// Nothing came back since, and it needs what it needed: no need to try again.
bool Scheduler::IsStillBlocked(const Request& request, const Match& match) const {
  return blocked_.arrival == request.rank.arrival &&
         blocked_.rests == cache_.pool().num_rests() && blocked_.running <= running_.size() &&
         blocked_.match.blocks == match.blocks && blocked_.match.idle == match.idle &&
         blocked_.match.loads == match.loads;
}

// Blocks for all known tokens at once: a prefill never stops half way for want of blocks. What was
// found here is shared first, so that nothing of it makes room for what is to come from below.
// `own_states`: whoever fills the blocks fills a state too, and none that was found is read.
// Empty: it does not fit, and nothing has changed.
std::vector<Claim::Entry> Scheduler::ClaimBlocks(const Request& request, const Match& match,
                                                 std::int32_t columns, bool own_states) {
  Claim claim(cache_);
  for (const Found& found : cache_.found()) {
    const bool state = IsState(found.group);
    if (found.below || (state && own_states) || (found.tail && match.tail == 0)) continue;
    claim.Share(found, state ? 0 : found.column);
  }
  for (const Found& found : cache_.found()) {
    if (match.loads == 0) break;
    if (!found.below || IsState(found.group)) continue;
    if (!claim.Take(found.group, found.column)) return {};
  }
  for (std::int32_t column = match.blocks; column < columns; ++column) {
    for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
      if (!IsState(g) && !claim.Take(g, column)) return {};
    }
  }
  for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
    if (IsState(g) && !claim.Take(g, 1)) return {};
  }
  const Room room{.available = cache_.pool().available(),
                  .growing = static_cast<std::int64_t>(running_.size()) * num_token_groups_,
                  .promised = Promised() + NeedsAfter(request, columns)};
  if (!MayAdmit(room)) return {};
  return std::move(claim).Keep();
}

// Blocks that a request with so many columns may still take, 0 where that is no promise.
std::int64_t Scheduler::NeedsAfter(const Request& request, std::int32_t columns) const {
  if (config_.overcommit) return 0;
  const std::int32_t most =
      config_.BlocksFor(static_cast<std::int64_t>(request.prompt_len) +
                        std::max(request.max_tokens, 1) - 1);
  return static_cast<std::int64_t>(std::max(0, most - columns)) * num_token_groups_;
}

// What was promised to those who run: it is there until they take it.
std::int64_t Scheduler::Promised() const {
  if (config_.overcommit) return 0;
  return std::accumulate(running_.begin(), running_.end(), std::int64_t{0},
                         [this](std::int64_t sum, const Request* request) {
                           return sum + NeedsAfter(*request, HeldOf(request->state)->columns);
                         });
}

Held Scheduler::Occupy(const Request& request, const Match& match, std::int32_t columns,
                       std::vector<Claim::Entry>& claimed, bool own_states) {
  Held held;
  held.slot = tables_.Open();
  held.groups.resize(config_.groups.size());
  const std::int32_t most = config_.BlocksFor(
      std::min<std::int64_t>(static_cast<std::int64_t>(request.prompt_len) + request.max_tokens,
                             config_.max_model_len));
  for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
    std::vector<BlockLease>& blocks = held.groups[static_cast<std::size_t>(g)];
    // For all that may come, so that no step pays for moving what is there.
    blocks.reserve(static_cast<std::size_t>(IsState(g) ? 2 : std::max(most, columns)));
    blocks.resize(static_cast<std::size_t>(IsState(g) ? 2 : columns));
  }
  for (Claim::Entry& entry : claimed) {
    if (entry.tail) continue;
    tables_.Put(held.slot, entry.group, entry.column, entry.lease.id());
    held.groups[static_cast<std::size_t>(entry.group)][static_cast<std::size_t>(entry.column)] =
        std::move(entry.lease);
  }
  for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
    const std::vector<BlockLease>& blocks = held.groups[static_cast<std::size_t>(g)];
    // A state that somebody fills is read where it is written.
    const bool filled = IsState(g) && blocks[0].id() == kNoBlock &&
                        (own_states || match.state_loads > 0);
    if (filled) tables_.Put(held.slot, g, 0, blocks[1].id());
  }
  held.columns = columns;
  held.scheduled = match.blocks * config_.block_size;
  held.published = match.blocks;
  held.cache_generation = cache_.generation();
  return held;
}

// The copies run behind every step made so far, which have written the tail, and before the rows of
// this one; until it is committed they keep their sources.
void Scheduler::CopyTail(Held& held, const Match& match, std::vector<Claim::Entry>& claimed,
                         StepBuilder& build) {
  for (Claim::Entry& entry : claimed) {
    if (!entry.tail) continue;
    const std::vector<BlockLease>& blocks = held.groups[static_cast<std::size_t>(entry.group)];
    build.AddCopy({entry.lease.id(), blocks[static_cast<std::size_t>(entry.column)].id(),
                   match.tail});
    std::move(entry.lease).Retire(Fence::AfterStep(build.id()));
  }
  held.scheduled += match.tail;
}

}  // namespace tokenspeed
