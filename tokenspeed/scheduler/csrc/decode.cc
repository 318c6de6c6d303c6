// The decode pass: running requests go on by one token, or by all that is known, or make room for
// others.
#include "scheduler.h"

#include <algorithm>

#include "check.h"

namespace tokenspeed {

// Leaves what of the budget prompts may take.
void Scheduler::Decode(StepBuilder& build, Mix& mix) {
  const std::vector<Request*> runs = DecodeRunning(build);
  const auto reserved = static_cast<std::int32_t>(runs.size());
  mix.decode_tokens = config_.max_step_tokens - build.budget() + reserved;
  build.EndOfDecodes(PromptBudget(mix) + reserved);
  ComputeRuns(runs, build);
}

// In order of rank, so that a victim, taken from the end, never has a row in this step. Returns who
// has several known tokens to compute, and blocks for all of them: their rows come behind.
std::vector<Request*> Scheduler::DecodeRunning(StepBuilder& build) {
  std::vector<Request*> runs;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Request& request = *running_[i];
    auto* decoding = std::get_if<Decoding>(&request.state);
    if (decoding == nullptr) continue;
    Held& held = decoding->held;
    Slide(held);
    const std::int32_t run = request.known() - held.scheduled;
    if (run > 1) {
      if (Grow(held, request, run, build)) runs.push_back(&request);
      continue;
    }
    const std::int32_t width = NextWidth(request, held);
    if (width == 0 || !Grow(held, request, width, build)) continue;
    TurnStates(request, held);
    build.AddRow(request, held, width, true, {});
    held.scheduled += width;
    ++held.samples_in_flight;
    held.drafts_in_flight += width - 1;
    held.last_step = build.id();
    Publish(request, held);
    FinishIfLast(request);
  }
  return runs;
}

// Tokens that had to follow, each request's in one row, as far as prompts may be beside decodes; at
// least one of each, as it would have got otherwise. No more than that where the step before had
// nothing for the first prompt in line: so long runs leave prompts every other step.
void Scheduler::ComputeRuns(std::span<Request* const> runs, StepBuilder& build) {
  auto behind = static_cast<std::int32_t>(runs.size());
  for (Request* request : runs) {
    Held& held = std::get<Decoding>(request->state).held;
    const std::int32_t left = request->known() - held.scheduled;
    std::int32_t chunk = std::min(left, build.budget() - --behind);
    if (starved_steps_ > 0) chunk = 1;
    if (num_state_groups_ > 0 && cache_.enabled()) {
      chunk = StopAtBlock(held.scheduled, chunk, request->known(), config_.block_size);
    }
    TurnStates(*request, held);
    build.AddRow(*request, held, chunk, chunk == left, {});
    held.scheduled += chunk;
    held.last_step = build.id();
    Publish(*request, held);
    if (chunk < left) continue;
    ++held.samples_in_flight;
    FinishIfLast(*request);
  }
}

// Drafts take blocks that nobody holds, never from others.
std::int32_t Scheduler::NextWidth(const Request& request, const Held& held) const {
  if (config_.max_draft_tokens == 0) return 1;
  const bool checkpoints = num_state_groups_ > 0 && cache_.enabled();
  const std::int32_t columns =
      num_token_groups_ == 0 ? held.columns + config_.max_draft_tokens
                             : held.columns + cache_.pool().available() / num_token_groups_;
  return WidthOf(
      {.drafts = config_.max_draft_tokens,
       .left = request.max_tokens - request.generated() - held.samples_in_flight -
               held.drafts_in_flight,
       .to_block_end =
           checkpoints ? config_.block_size - held.scheduled % config_.block_size : 0,
       .room = std::max(1, columns * config_.block_size - held.scheduled)});
}

// Room for `width` more tokens. False: the request sits this step out. It then waits for blocks that
// are certain to come: fenced ones and those of finishing requests with the next commits, or those
// of requests before it. The first of all never waits for longer than the steps in flight,
// because it may take from everybody behind it and fits the pool alone.
bool Scheduler::Grow(Held& held, const Request& request, std::int32_t width, StepBuilder& build) {
  while (held.scheduled + width > static_cast<std::int64_t>(held.columns) * config_.block_size) {
    if (!MakeRoom(request, build)) return false;
    AddColumn(held);
  }
  return true;
}

// Blocks for one more column of a request.
bool Scheduler::MakeRoom(const Request& request, StepBuilder& build) {
  while (cache_.pool().available() < num_token_groups_) {
    if (DropFirstPin()) continue;
    build.MarkShort();
    if (BlocksAreComing()) return false;
    Request* victim = VictimBehind(request);
    if (victim == nullptr) return false;
    Preempt(*victim, build);
  }
  return true;
}

// O(who runs), and only where blocks are short.
Request* Scheduler::VictimBehind(const Request& request) const {
  const auto behind = std::upper_bound(running_.begin(), running_.end(), &request, Before);
  std::vector<Candidate> candidates;
  std::vector<Request*> victims;
  for (auto at = behind; at != running_.end(); ++at) {
    if (VerdictOf<event::Preempt>((*at)->state) != Verdict::kGo) continue;
    candidates.push_back({(*at)->rank, FreesBlocks(*HeldOf((*at)->state))});
    victims.push_back(*at);
  }
  const std::int32_t chosen = ChooseVictim(candidates);
  return chosen < 0 ? nullptr : victims[static_cast<std::size_t>(chosen)];
}

// Prefixes are shared from their beginning, so whoever shares its last block shares them all.
bool Scheduler::FreesBlocks(const Held& held) const {
  return std::any_of(held.groups.begin(), held.groups.end(), [this](const auto& blocks) {
    return !blocks.empty() && cache_.pool().shares(blocks.back().id()) == 1;
  });
}

// Fenced blocks come back with a commit or a report, but not those in quarantine.
bool Scheduler::BlocksAreComing() const {
  return cache_.pool().num_fenced() > cache_.pool().num_quarantined() || num_finishing_ > 0;
}

// With room in the host tier it keeps what it had computed.
void Scheduler::Preempt(Request& victim, StepBuilder& build) {
  ++counters_.preemptions;
  const bool computed = VerdictOf<event::WriteBack>(victim.state) == Verdict::kGo;
  if (computed) PublishStates(victim, *HeldOf(victim.state));
  RemoveRunning(victim);
  if (computed && FitsOnHost(victim, *HeldOf(victim.state))) {
    StoreImage(victim, build);
  } else {
    Apply(victim.state, event::Preempt{}, trail_);
  }
  Requeue(victim);
}

// Whoever is retracted queues once its results are in.
void Scheduler::Requeue(Request& request) {
  const auto* retracted = std::get_if<Retracted>(&request.state);
  if (retracted != nullptr && retracted->samples_in_flight == 0) {
    waiting_.Push(request, last_now_);
  }
}

// max_tokens ends a request by arithmetic, so no step is spent on a token past it. (It also
// keeps the request within max_model_len, which Submit made sure of.)
void Scheduler::FinishIfLast(Request& request) {
  const auto& decoding = std::get<Decoding>(request.state);
  if (request.generated() + decoding.held.samples_in_flight < request.max_tokens) return;
  Apply(request.state, event::AwaitLast{}, trail_);
  ++num_finishing_;
}

}  // namespace tokenspeed
