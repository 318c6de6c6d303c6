#include "scheduler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "check.h"

namespace tokenspeed {
namespace {

bool Before(const Request* a, const Request* b) { return a->rank < b->rank; }

bool AnyNegative(std::span<const Token> tokens) {
  return std::any_of(tokens.begin(), tokens.end(), [](Token token) { return token < 0; });
}

}  // namespace

Scheduler::Scheduler(const Config& config)
    : config_((config.Validate(), config)),
      num_token_groups_(config.num_token_groups()),
      num_state_groups_(config.num_groups() - config.num_token_groups()),
      cache_(config),
      tables_(config.max_running, config.row_lengths()) {}

Scheduler::~Scheduler() {
  while (DropFirstPin()) continue;
  requests_.ForEach([this](Request& request) { Apply(request.state, event::End{}, trail_); });
}

void Scheduler::InsertRunning(Request& request) {
  const auto at = std::upper_bound(running_.begin(), running_.end(), &request, Before);
  running_.insert(at, &request);
}

void Scheduler::RemoveRunning(const Request& request) {
  const auto at = std::lower_bound(running_.begin(), running_.end(), &request, Before);
  TS_CHECK(at != running_.end() && *at == &request, "an owner of a slot is in the running list");
  running_.erase(at);
}

// ---- Submit and abort ------------------------------------------------------------------------

SubmitResult Scheduler::Judge(const Submission& submission) const {
  if (requests_.Find(submission.id) != nullptr) return SubmitResult::kDuplicate;
  const auto prompt = static_cast<std::int64_t>(submission.tokens.size());
  if (prompt == 0) return SubmitResult::kEmpty;
  if (prompt + submission.max_tokens > config_.max_model_len) return SubmitResult::kTooLong;
  // The last token is sampled but never computed.
  const std::int64_t computed = prompt + std::max(submission.max_tokens, 1) - 1;
  if (config_.DemandOf(computed) > cache_.pool().usable()) return SubmitResult::kNeverFits;
  if (!config_.chunked_prefill && prompt > config_.max_step_tokens) {
    return SubmitResult::kExceedsStep;
  }
  return SubmitResult::kAccepted;
}

SubmitResult Scheduler::Submit(const Submission& submission) {
  Require(std::isfinite(submission.now), "now must be finite seconds");
  Require(submission.max_tokens >= 0, "max_tokens must not be negative");
  Require(submission.min_tokens >= 0, "min_tokens must not be negative");
  Require(!AnyNegative(submission.tokens), "token ids must not be negative");
  const SubmitResult result = Judge(submission);
  if (result != SubmitResult::kAccepted) return result;

  Request& request = requests_.Enter(submission.id);
  request.rank = RankOf(submission.now, submission.priority, config_.ageing_s, ++arrivals_);
  request.arrived_s = submission.now;
  request.prompt_len = static_cast<std::int32_t>(submission.tokens.size());
  request.max_tokens = submission.max_tokens;
  request.min_tokens = submission.min_tokens;
  request.read_prefix_cache = submission.read_prefix_cache;
  request.tokens.assign(submission.tokens.begin(), submission.tokens.end());
  request.stop_token_ids.assign(submission.stop_token_ids.begin(), submission.stop_token_ids.end());
  std::sort(request.stop_token_ids.begin(), request.stop_token_ids.end());
  request.root = RootDigest(config_.digest_key, submission.salt);
  if (cache_.enabled()) ExtendDigests(request);
  waiting_.emplace(request.rank, &request);
  return result;
}

void Scheduler::ExtendDigests(Request& request) const {
  const auto block_size = static_cast<std::size_t>(config_.block_size);
  while ((request.digests.size() + 1) * block_size <= request.tokens.size()) {
    const std::size_t begin = request.digests.size() * block_size;
    const Digest parent = request.digests.empty() ? request.root : request.digests.back();
    request.digests.push_back(BlockDigest(config_.digest_key, parent,
                                          std::span(request.tokens).subspan(begin, block_size)));
  }
}

bool Scheduler::Abort(RequestId id) {
  Request* request = requests_.Find(id);
  if (request == nullptr) return false;
  ++counters_.aborted;
  End(*request);
  return true;
}

// Releases whatever the request holds and erases it. Results still in flight find a dead handle.
void Scheduler::End(Request& request) {
  if (HeldOf(request.state) != nullptr) {
    if (std::holds_alternative<Finishing>(request.state)) --num_finishing_;
    PublishStates(request, *HeldOf(request.state));
    RemoveRunning(request);
  } else {
    waiting_.erase(request.rank);  // absent while a retracted request's results are in flight
  }
  Apply(request.state, event::End{}, trail_);
  requests_.Erase(request);
}

std::span<const Token> Scheduler::Tokens(RequestId id) const {
  const Request* request = requests_.Find(id);
  Require(request != nullptr, "request " + std::to_string(id) + " is not live");
  return request->tokens;
}

// ---- Step ------------------------------------------------------------------------------------

std::shared_ptr<const Step> Scheduler::MakeStep(double now) {
  Require(std::isfinite(now), "now must be finite seconds");
  if (static_cast<std::int32_t>(in_flight_.size()) > config_.in_flight_depth) {
    throw std::logic_error("commit step " + std::to_string(in_flight_.front().step->id) +
                           " first: in_flight_depth is " + std::to_string(config_.in_flight_depth));
  }
  last_now_ = now;
  DropPinsUntil(now);
  tables_.ClearRetired();
  StepBuilder build(last_step_ + 1, config_.max_step_tokens, running_.size());
  DecodeRunning(build);
  build.EndOfDecodes();
  PrefillRunning(build);
  AdmitWaiting(build);
  if (build.empty()) return nullptr;
  last_step_ = build.id();
  ++counters_.steps;
  in_flight_.push_back(std::move(build).Seal(tables_));
  return in_flight_.back().step;
}

// In order of rank, so that a victim, taken from the end, never has a row in this step.
void Scheduler::DecodeRunning(StepBuilder& build) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    Request& request = *running_[i];
    auto* decoding = std::get_if<Decoding>(&request.state);
    if (decoding == nullptr) continue;
    Held& held = decoding->held;
    Slide(held);
    if (!Grow(held, request, build)) continue;
    TurnStates(request, held);
    build.AddRow(request, held, 1, true, {});
    ++held.scheduled;
    ++held.samples_in_flight;
    held.last_step = build.id();
    Publish(request, held);
    FinishIfLast(request);
  }
}

// Room for one more token. False: the request sits this step out. It then waits for blocks that
// are certain to come: fenced ones and those of finishing requests with the next commits, or those
// of requests before it. The first of all never waits for longer than the steps in flight,
// because it may take from everybody behind it and fits the pool alone.
bool Scheduler::Grow(Held& held, const Request& request, StepBuilder& build) {
  const auto room = static_cast<std::int64_t>(held.columns) * config_.block_size;
  if (held.scheduled < room) return true;
  while (cache_.pool().available() < num_token_groups_) {
    if (DropFirstPin()) continue;
    build.MarkShort();
    if (cache_.pool().num_fenced() > 0 || num_finishing_ > 0) return false;
    Request* victim = running_.back();
    if (victim == &request) return false;
    Preempt(*victim);
  }
  AddColumn(held);
  return true;
}

// Gives back the blocks of window groups that no later query reads. Steps in flight may.
void Scheduler::Slide(Held& held) {
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    const CacheGroup& group = config_.groups[g];
    if (group.kind != CacheGroup::Kind::kWindow) continue;
    // From the first block still read to the left, until a hole: each block is given back once.
    const std::int32_t needed =
        std::max(0, held.scheduled - group.window + 1) / config_.block_size;
    for (std::int32_t i = needed - 1; i >= 0; --i) {
      BlockLease& block = held.groups[g][static_cast<std::size_t>(i)];
      if (block.id() == kNoBlock) break;
      std::move(block).Retire(Fence::AfterStep(held.last_step));
      tables_.Put(held.slot, static_cast<std::int32_t>(g), i, kNullBlock);
    }
  }
}

// Before another row of the request: a state that was published stays as it is, and the row reads
// it and writes a fresh block; any other is updated in place. Without a block to spare nothing is
// published: a checkpoint never makes anybody wait.
void Scheduler::TurnStates(const Request& request, Held& held) {
  if (num_state_groups_ == 0) return;
  if (cache_.pool().available() >= num_state_groups_) PublishStates(request, held);
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind != CacheGroup::Kind::kState) continue;
    BlockLease& read = held.groups[g][0];
    BlockLease& written = held.groups[g][1];
    if (read.id() != kNoBlock) std::move(read).Retire(Fence::AfterStep(held.last_step));
    const auto section = static_cast<std::int32_t>(g);
    tables_.Put(held.slot, section, 0, written.id());
    if (!cache_.pool().kept(written.id())) continue;
    read = std::move(written);
    written = cache_.Take();
    tables_.Put(held.slot, section, 1, written.id());
  }
}

// The states after exactly the tokens scheduled so far, if these are whole blocks and all known.
// Only for later steps: rows of one step do not wait for each other's states.
void Scheduler::PublishStates(const Request& request, Held& held) {
  if (num_state_groups_ == 0 || !cache_.enabled()) return;
  if (held.cache_generation != cache_.generation() || held.scheduled > request.known()) return;
  if (held.scheduled == 0 || held.scheduled % config_.block_size != 0) return;
  const auto last = static_cast<std::size_t>(held.scheduled / config_.block_size - 1);
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind != CacheGroup::Kind::kState) continue;
    cache_.Publish(held.groups[g][1].id(),
                   InGroup(request.digests[last], static_cast<std::int32_t>(g)));
  }
}

void Scheduler::Preempt(Request& victim) {
  ++counters_.preemptions;
  PublishStates(victim, *HeldOf(victim.state));
  RemoveRunning(victim);
  Apply(victim.state, event::Preempt{}, trail_);
  if (std::get<Retracted>(victim.state).samples_in_flight == 0) {
    waiting_.emplace(victim.rank, &victim);
  }
}

void Scheduler::PrefillRunning(StepBuilder& build) {
  for (Request* request : running_) {
    if (build.budget() == 0) return;
    auto* prefilling = std::get_if<Prefilling>(&request->state);
    if (prefilling == nullptr) continue;
    const std::int32_t chunk = NextChunk(*request, prefilling->held.scheduled, build);
    if (chunk == 0) continue;
    Slide(prefilling->held);
    TurnStates(*request, prefilling->held);
    AddChunk(*request, chunk, {}, build);
  }
}

std::int32_t Scheduler::NextChunk(const Request& request, std::int32_t scheduled,
                                  const StepBuilder& build) const {
  const std::int32_t chunk = ChunkOf(request.known() - scheduled, build.budget(),
                                     config_.max_step_tokens, config_.chunked_prefill);
  if (num_state_groups_ == 0 || !cache_.enabled() || !config_.chunked_prefill) return chunk;
  return StopAtBlock(scheduled, chunk, request.known(), config_.block_size);
}

// Strictly in order: whoever is first and does not fit holds back the others, so that small
// requests cannot starve a large one.
void Scheduler::AdmitWaiting(StepBuilder& build) {
  while (!build.is_short() && build.budget() > 0 && !waiting_.empty() && tables_.num_free() > 0) {
    Request& request = *waiting_.begin()->second;
    if (!TryAdmit(request, build)) return;
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
  if (chunk == 0) return false;
  if (!MayAdmit(room)) return DropFirstPin() && TryAdmit(request, build);

  Held held = Occupy(request, match);
  waiting_.erase(waiting_.begin());
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

void Scheduler::AddColumn(Held& held) {
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind == CacheGroup::Kind::kState) continue;
    held.groups[g].push_back(cache_.Take());
    tables_.Put(held.slot, static_cast<std::int32_t>(g), held.columns,
                held.groups[g].back().id());
  }
  ++held.columns;
}

void Scheduler::AddChunk(Request& request, std::int32_t chunk,
                         const StepBuilder::Admission& admission, StepBuilder& build) {
  Held& held = std::get<Prefilling>(request.state).held;
  const bool last = held.scheduled + chunk == request.known();
  const bool samples = last && request.max_tokens > 0;
  build.AddRow(request, held, chunk, samples, admission);
  held.scheduled += chunk;
  held.last_step = build.id();
  Publish(request, held);
  if (!last) return;
  if (samples) {
    ++held.samples_in_flight;
    Apply(request.state, event::StartDecoding{}, trail_);
    FinishIfLast(request);
  } else {
    Apply(request.state, event::AwaitLast{}, trail_);
    ++num_finishing_;
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

// Offers every block that is full, whose tokens are all known, and which is computed by a step
// already made: every step after that one, and later rows of the same step, may read it.
void Scheduler::Publish(const Request& request, Held& held) {
  if (!cache_.enabled()) return;
  const std::int64_t ready = std::min(held.scheduled, request.known());
  while ((static_cast<std::int64_t>(held.published) + 1) * config_.block_size <= ready) {
    const auto i = static_cast<std::size_t>(held.published++);
    if (held.cache_generation != cache_.generation()) continue;
    for (std::size_t g = 0; g < config_.groups.size(); ++g) {
      if (config_.groups[g].kind == CacheGroup::Kind::kState) continue;
      const BlockId block = held.groups[g][i].id();
      TS_CHECK(block != kNoBlock, "a window slides over published blocks only");
      cache_.Publish(block, InGroup(request.digests[i], static_cast<std::int32_t>(g)));
    }
  }
}

// ---- Commit ----------------------------------------------------------------------------------

Deltas Scheduler::Commit(StepId step_id, std::span<const Token> tokens) {
  Require(!in_flight_.empty() && in_flight_.front().step->id == step_id,
          "step " + std::to_string(step_id) + " is not the oldest step in flight");
  const auto expected = static_cast<std::size_t>(in_flight_.front().step->num_samples);
  Require(tokens.size() == expected, "step " + std::to_string(step_id) + " samples " +
                                         std::to_string(expected) + " tokens, not " +
                                         std::to_string(tokens.size()));
  Require(!AnyNegative(tokens), "sampled token ids must not be negative");

  const InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  Settle(step_id);
  Deltas deltas;
  std::size_t next = 0;
  for (std::size_t row = 0; row < done.rows.size(); ++row) {
    const bool sampled = done.step->samples[row] != 0;
    const Token token = sampled ? tokens[next++] : kNoToken;
    Request* request = requests_.Find(done.rows[row]);
    if (request == nullptr) continue;  // it ended while the step ran
    if (sampled) {
      Accept(*request, token, deltas);
    } else if (std::holds_alternative<Finishing>(request->state)) {
      // max_tokens is 0 and its last chunk may still be in the next step.
      if (HeldOf(request->state)->last_step == step_id) {
        ++counters_.finished;
        deltas.Add(request->id, kNoToken, Finish::kLength);
        End(*request);
      }
    }
  }
  return deltas;
}

void Scheduler::Settle(StepId committed) {
  committed_ = committed;
  cache_.Settle(committed);
  tables_.Settle(committed);
}

void Scheduler::Accept(Request& request, Token token, Deltas& deltas) {
  Apply(request.state, event::Sampled{}, trail_);
  ++counters_.generated_tokens;
  request.tokens.push_back(token);
  if (cache_.enabled()) ExtendDigests(request);
  if (Held* held = HeldOf(request.state)) Publish(request, *held);

  const Finish how = HowItEnds(request);
  deltas.Add(request.id, token, how);
  if (how != Finish::kNo) {
    ++counters_.finished;
    End(request);
  } else if (const auto* retracted = std::get_if<Retracted>(&request.state);
             retracted != nullptr && retracted->samples_in_flight == 0) {
    waiting_.emplace(request.rank, &request);
  }
}

// A stop token counts once `min_tokens` were generated, itself included.
Finish Scheduler::HowItEnds(const Request& request) {
  if (request.generated() >= request.min_tokens &&
      std::binary_search(request.stop_token_ids.begin(), request.stop_token_ids.end(),
                         request.tokens.back())) {
    return Finish::kStop;
  }
  return request.generated() >= request.max_tokens ? Finish::kLength : Finish::kNo;
}

// ---- Pins ------------------------------------------------------------------------------------

std::int32_t Scheduler::PinPrefix(std::span<const Token> tokens, std::string_view salt,
                                  double ttl_s, double now) {
  Require(std::isfinite(now) && std::isfinite(ttl_s), "now and ttl_s must be finite seconds");
  Require(ttl_s > 0, "ttl_s must be positive");
  Require(!AnyNegative(tokens), "token ids must not be negative");
  if (!cache_.enabled()) return 0;
  const Match match = cache_.Find(DigestsOf(tokens, salt), 0);
  if (match.blocks == 0) return 0;
  std::vector<BlockLease> blocks;
  for (const Found& found : cache_.found()) blocks.push_back(cache_.Share(found.block));
  cache_.Forget();
  num_pinned_ += static_cast<std::int32_t>(blocks.size());
  pins_.emplace(now + ttl_s, std::move(blocks));
  return match.blocks * config_.block_size;
}

// Others' fences stay with the blocks: a pin itself touches nothing.
bool Scheduler::DropFirstPin() {
  if (pins_.empty()) return false;
  std::vector<BlockLease>& blocks = pins_.begin()->second;
  num_pinned_ -= static_cast<std::int32_t>(blocks.size());
  for (; !blocks.empty(); blocks.pop_back()) std::move(blocks.back()).Retire(Fence::Now());
  pins_.erase(pins_.begin());
  return true;
}

void Scheduler::DropPinsUntil(double now) {
  while (!pins_.empty() && pins_.begin()->first <= now) DropFirstPin();
}

std::vector<Digest> Scheduler::DigestsOf(std::span<const Token> tokens,
                                         std::string_view salt) const {
  const auto block_size = static_cast<std::size_t>(config_.block_size);
  std::vector<Digest> digests;
  Digest parent = RootDigest(config_.digest_key, salt);
  for (std::size_t at = 0; at + block_size <= tokens.size(); at += block_size) {
    parent = BlockDigest(config_.digest_key, parent, tokens.subspan(at, block_size));
    digests.push_back(parent);
  }
  return digests;
}

std::vector<Digest> Scheduler::CachedDigests() const {
  std::vector<Digest> digests;
  for (BlockId block = 1; block <= cache_.pool().usable(); ++block) {
    if (cache_.index().Contains(block)) digests.push_back(cache_.index().DigestOf(block));
  }
  return digests;
}

Stats Scheduler::GetStats() const {
  Stats stats = counters_;
  const BlockPool& pool = cache_.pool();
  stats.running = static_cast<std::int32_t>(running_.size());
  stats.waiting = static_cast<std::int32_t>(requests_.size() - running_.size());
  stats.slots_used = tables_.num_slots() - tables_.num_free();
  stats.blocks_total = pool.usable();
  stats.blocks_used = pool.num_held() + pool.num_fenced();
  stats.blocks_cached = pool.num_idle();
  stats.blocks_free = pool.num_free();
  stats.blocks_pinned = num_pinned_;
  if (!waiting_.empty()) {
    stats.head_wait_s = std::max(0.0, last_now_ - waiting_.begin()->second->arrived_s);
  }
  return stats;
}

}  // namespace tokenspeed
