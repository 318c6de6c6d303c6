#include "scheduler.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "check.h"

namespace tokenspeed {
Scheduler::Scheduler(const Config& config)
    : config_((config.Validate(), config)),
      num_token_groups_(config.num_token_groups()),
      num_state_groups_(config.num_groups() - config.num_token_groups()),
      host_(config.num_host_blocks > 0 ? std::make_unique<HostTier>(config) : nullptr),
      cache_(config, host_ == nullptr ? nullptr : &host_->cache),
      tables_(config.max_running, config.row_lengths()) {}

Scheduler::~Scheduler() {
  while (DropFirstPin()) continue;
  requests_.ForEach([this](Request& request) { Apply(request.state, event::End{}, trail_); });
  for (auto& [id, ticket] : tickets_.all()) {
    for (BlockLease& target : ticket.targets) std::move(target).Retire(Fence::Now());
  }
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

// What can never be accepted comes before what cannot be now.
Judgement Scheduler::Judge(std::int64_t prompt_len, std::int64_t max_tokens) const {
  const std::int64_t total = prompt_len + max_tokens;
  if (prompt_len == 0) return {SubmitResult::kEmpty, 1, config_.max_model_len};
  if (total > config_.max_model_len) return {SubmitResult::kTooLong, total, config_.max_model_len};
  // The last token is sampled but never computed.
  const std::int64_t demand =
      config_.DemandOf(prompt_len + std::max<std::int64_t>(max_tokens, 1) - 1);
  const std::int32_t usable = cache_.pool().usable();
  if (demand > usable) return {SubmitResult::kNeverFits, demand, usable};
  if (!config_.chunked_prefill && prompt_len > config_.max_step_tokens) {
    return {SubmitResult::kExceedsStep, prompt_len, config_.max_step_tokens};
  }
  const auto live = static_cast<std::int64_t>(requests_.size());
  const std::int64_t most = static_cast<std::int64_t>(config_.max_running) + config_.max_waiting;
  if (live >= most) return {SubmitResult::kQueueFull, live + 1, most};
  return {SubmitResult::kAccepted, total, config_.max_model_len};
}

SubmitResult Scheduler::Submit(const Submission& submission) {
  Require(std::isfinite(submission.now), "now must be finite seconds");
  Require(submission.max_tokens >= 0, "max_tokens must not be negative");
  Require(submission.min_tokens >= 0, "min_tokens must not be negative");
  Require(submission.max_wait_s >= 0, "max_wait_s must be seconds and not negative");
  Require(!AnyNegative(submission.tokens), "token ids must not be negative");
  const bool shared = config_.role != Role::kFused;
  Require((submission.peer != 0) == shared, "a peer goes with the prefill and decode roles only");
  Require(!shared || submission.max_tokens > 0, "a hand-over needs max_tokens of at least 1");
  if (requests_.Find(submission.id) != nullptr) return SubmitResult::kDuplicate;
  if (shared && peers_.contains(submission.peer)) return SubmitResult::kPeerInUse;
  const auto prompt_len = static_cast<std::int64_t>(submission.tokens.size());
  const SubmitResult result = Judge(prompt_len, submission.max_tokens).result;
  if (result != SubmitResult::kAccepted) return result;

  Request& request = requests_.Enter(submission.id);
  request.arrived_s = submission.now;
  request.wait_left_s = submission.max_wait_s;
  request.prompt_len = static_cast<std::int32_t>(prompt_len);
  request.max_tokens = submission.max_tokens;
  request.min_tokens = submission.min_tokens;
  request.read_prefix_cache = submission.read_prefix_cache;
  // Room for an answer of usual length, so that no step pays for moving a long prompt.
  constexpr std::int32_t kUsualAnswer = 4'096;
  const std::int32_t usual = request.prompt_len + std::min(submission.max_tokens, kUsualAnswer);
  request.tokens.reserve(static_cast<std::size_t>(usual));
  request.digests.reserve(static_cast<std::size_t>(usual / config_.block_size));
  request.tokens.assign(submission.tokens.begin(), submission.tokens.end());
  request.stop_token_ids.assign(submission.stop_token_ids.begin(), submission.stop_token_ids.end());
  std::sort(request.stop_token_ids.begin(), request.stop_token_ids.end());
  request.root = RootDigest(config_.digest_key, submission.salt);
  if (cache_.enabled()) ExtendDigests(request);
  request.rank = RankOf(submission.now, submission.priority, config_.ageing_s, ++arrivals_,
                        LeadOf(submission, request));
  if (shared) Join(request, submission.peer);
  if (config_.role != Role::kPrefill) waiting_.Push(request, submission.now);
  if (config_.disk || config_.remote) lookups_.push_back(request.handle);
  return result;
}

// By what is cached on arrival: the order is total and fixed, so nothing is ever sorted again.
double Scheduler::LeadOf(const Submission& submission, const Request& request) const {
  if (config_.cache_lead_s == 0 || !submission.read_prefix_cache) return 0;
  const std::int64_t cached =
      static_cast<std::int64_t>(cache_.Depth(request.digests, true)) * config_.block_size;
  return tokenspeed::LeadOf(cached, request.prompt_len, config_.cache_lead_s);
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
    if (IsLeaving(request.state)) --num_finishing_;
    if (!IsFilled(request.state)) {
      PublishStates(request, *HeldOf(request.state));
      PublishTail(request, *HeldOf(request.state));
    }
    RemoveRunning(request);
  } else {
    waiting_.Remove(request, last_now_);  // absent while a retracted one's results are in flight
  }
  Part(request);
  Apply(request.state, event::End{}, trail_);
  requests_.Erase(request);
}

// An end without a token.
void Scheduler::Fail(Request& request, Finish how, Deltas& deltas) {
  ++(how == Finish::kHandedOver ? counters_.finished : counters_.failed);
  deltas.Add(request.id, kNoToken, how);
  End(request);
}

std::int32_t Scheduler::ResetPrefixCache() {
  std::int32_t forgotten = cache_.Reset();
  if (host_ == nullptr) return forgotten;
  host_->write_backs.Clear();
  host_->puts.Clear();
  return forgotten + host_->cache.Reset();
}

std::span<const Token> Scheduler::Tokens(RequestId id) const {
  const Request* request = requests_.Find(id);
  Require(request != nullptr, "request " + std::to_string(id) + " is not live");
  return request->tokens;
}

std::shared_ptr<const Step> Scheduler::MakeStep(double now) {
  Require(std::isfinite(now), "now must be finite seconds");
  if (static_cast<std::int32_t>(in_flight_.size()) > config_.in_flight_depth) {
    throw std::logic_error("commit step " + std::to_string(in_flight_.front().step->id) +
                           " first: in_flight_depth is " + std::to_string(config_.in_flight_depth));
  }
  last_now_ = now;
  DropPinsUntil(now);
  ExpireWaiting(now);
  ExpireTransfers(now);
  tables_.ClearRetired();
  StepBuilder build(last_step_ + 1, config_.max_step_tokens, running_.size());
  // What frees blocks of others goes first, before any prompt; then what somebody waits for.
  StartWords(build);
  if (host_ != nullptr) StartGets(build);
  if (!lookups_.empty()) StartLookups(build);
  MakeRows(build);
  StartTransfers(build);
  if (build.empty()) {
    EndStalled();
    return nullptr;
  }
  last_step_ = build.id();
  ++counters_.steps;
  in_flight_.push_back(std::move(build).Seal(tables_));
  return in_flight_.back().step;
}

void Scheduler::MakeRows(StepBuilder& build) {
  Mix mix{.step_tokens = config_.max_step_tokens,
          .mixed_tokens = config_.max_mixed_tokens,
          .starved_steps = starved_steps_,
          .patience_steps = config_.patience_steps,
          .backlog_tokens = config_.max_backlog_tokens,
          .full_steps = full_steps_,
          .backlog_steps = config_.backlog_steps};
  const bool alone = PromptsGoAlone(mix);
  if (!alone) Decode(build, mix);
  ServePrompts(build);
  const bool beside = mix.decode_tokens > 0;
  starved_steps_ = beside && build.is_denied() ? starved_steps_ + 1 : 0;
  // A step without decodes says nothing of what decodes leave.
  if (beside) full_steps_ = build.is_full() ? full_steps_ + 1 : 0;
  if (alone && build.empty()) Decode(build, mix);  // it was not for want of tokens
}

// Nothing runs and nothing is to come: quarantine has taken what the next one needs.
void Scheduler::EndStalled() {
  if (cache_.pool().num_quarantined() == 0 || !in_flight_.empty()) return;
  if (tickets_.num_live() > 0 || BlocksAreComing()) return;
  const auto waits = [](const Request* request) { return IsFilled(request->state); };
  if (std::any_of(running_.begin(), running_.end(), waits)) return;
  Request* stuck = running_.empty() ? waiting_.first() : running_.back();
  if (stuck != nullptr) Fail(*stuck, Finish::kNoRoom, ended_);
}

void Scheduler::ExpireWaiting(double now) {
  while (Request* request = waiting_.Overdue(now)) {
    ++counters_.expired;
    ended_.Add(request->id, kNoToken, Finish::kDeadline);
    End(*request);
  }
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
  stats.blocks_quarantined = pool.num_quarantined();
  if (host_ != nullptr) {
    const BlockPool& host = host_->cache.pool();
    stats.host_blocks_total = host.usable();
    stats.host_blocks_used = host.num_held() + host.num_fenced();
    stats.host_blocks_cached = host.num_idle();
    stats.host_blocks_free = host.num_free();
    stats.host_blocks_quarantined = host.num_quarantined();
  }
  stats.transfers_in_flight = tickets_.num_live();
  stats.transfers_lost = tickets_.num_lost();
  stats.peers = static_cast<std::int32_t>(peers_.size());
  if (const Request* first = waiting_.first()) {
    stats.head_wait_s = std::max(0.0, last_now_ - first->arrived_s);
  }
  return stats;
}

}  // namespace tokenspeed
