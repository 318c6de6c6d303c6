// The scheduler of one engine: who computes what in the next step, and on which blocks.
#ifndef TOKENSPEED_SCHEDULER_SCHEDULER_H_
#define TOKENSPEED_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "block_table.h"
#include "ids.h"
#include "policy.h"
#include "prefix_cache.h"
#include "request.h"
#include "step.h"

namespace tokenspeed {

struct Config {
  std::int32_t num_blocks = 0;       // with the null block: num_blocks - 1 are usable
  std::int32_t block_size = 0;       // tokens
  std::int32_t max_running = 0;      // slots
  std::int32_t max_step_tokens = 0;  // at least max_running, so that no decode waits for budget
  std::int32_t max_model_len = 0;    // tokens of prompt and output together
  bool prefix_cache = true;
  bool chunked_prefill = true;
  std::int32_t in_flight_depth = 0;  // 1: the next step may be made before this one is committed
  DigestKey digest_key;
  double ageing_s = 30;  // seconds of waiting that outweigh one priority class

  // Throws std::invalid_argument naming the field and the way out.
  void Validate() const;
  [[nodiscard]] std::int32_t row_length() const {
    return static_cast<std::int32_t>((static_cast<std::int64_t>(max_model_len) + block_size - 1) / block_size);
  }
};

enum class SubmitResult : std::uint8_t {
  kAccepted,
  kDuplicate,    // a live request has this id
  kEmpty,        // no prompt token
  kTooLong,      // prompt + max_tokens > max_model_len
  kNeverFits,    // needs more blocks than the pool has
  kExceedsStep,  // chunked prefill is off and the prompt is longer than a step
};

struct Stats {
  std::int32_t running = 0;  // requests that own a slot
  std::int32_t waiting = 0;  // submitted or preempted, to be admitted
  std::int32_t slots_used = 0;     // of running requests, or fenced
  std::int32_t blocks_total = 0;   // usable: used + cached + free
  std::int32_t blocks_used = 0;    // held by running requests, or fenced
  std::int32_t blocks_cached = 0;  // held by nobody, evictable
  std::int32_t blocks_free = 0;
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;         // of requests admitted for the first time
  std::uint64_t cached_prompt_tokens = 0;  // of these, found in the prefix cache
  std::uint64_t generated_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t finished = 0;
  std::uint64_t aborted = 0;
  double head_wait_s = 0;  // how long the next in line had waited at the last MakeStep
};

// The cost of a call is the size of what it changes: a step costs O(running + blocks taken +
// tokens of prefill rows), whatever is cached, waiting or long; Submit costs O(prompt).
//
// Deterministic: the same calls give the same Steps. No clock, thread or I/O inside.
// Not thread-safe. Steps handed out are immutable and may outlive the scheduler.
//
// Guarantees
//   - A request that was accepted ends exactly once: in a Delta with a Finish, or by Abort.
//   - With no step in flight and a live request, MakeStep returns a step.
//   - A block or slot is not reused before every step that touches it is committed.
//   - Preemption and the prefix cache cannot be seen in the tokens a request is fed.
class Scheduler {
 public:
  // Throws std::invalid_argument, see Config::Validate.
  explicit Scheduler(const Config& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws std::invalid_argument on negative tokens or counts, or when `now` is not finite.
  SubmitResult Submit(const Submission& submission);

  // Ends a request in any state; false when the id is not live. No Delta comes for it afterwards.
  bool Abort(RequestId id);

  // The next step, or nullptr when nothing can be scheduled until something is committed,
  // submitted or aborted.
  // REQUIRES: at most in_flight_depth steps are in flight (else std::logic_error).
  std::shared_ptr<const Step> MakeStep(double now);

  // The tokens sampled by the oldest step in flight, one per row with samples = 1, in row order.
  // Throws std::invalid_argument, and changes nothing, for another step, a wrong count or a
  // negative token.
  Deltas Commit(StepId step, std::span<const Token> tokens);

  // Prompt and accepted tokens. Throws std::invalid_argument when the id is not live. The span is
  // valid until the next call.
  [[nodiscard]] std::span<const Token> Tokens(RequestId id) const;

  // Forgets every cached prefix; what is being computed now is not published afterwards.
  // Returns how many blocks were forgotten. O(pool).
  std::int32_t ResetPrefixCache() { return cache_.Reset(); }

  [[nodiscard]] Stats GetStats() const;
  [[nodiscard]] const BlockTables& tables() const { return tables_; }
  [[nodiscard]] const Config& config() const { return config_; }

  // Recomputes every count, list and relation from scratch. Throws Broken. O(everything).
  void Audit() const;

 private:
  struct InFlight {
    std::shared_ptr<const Step> step;
    std::vector<Handle> rows;
  };
  class Build;  // the step under construction

  // Entries: one per live request, found by id or by handle.
  Request* Find(RequestId id) const;
  Request* Find(Handle handle) const;
  Request& Enter(RequestId id);
  void Erase(Request& request);

  [[nodiscard]] SubmitResult Judge(const Submission& submission) const;
  void ExtendDigests(Request& request) const;
  [[nodiscard]] std::int32_t BlocksFor(std::int64_t tokens) const;

  // The three passes of a step.
  void DecodeRunning(Build& build);
  void PrefillRunning(Build& build);
  void AdmitWaiting(Build& build);

  bool Grow(Held& held, const Request& request, Build& build);
  void Preempt(Request& victim);
  bool TryAdmit(Request& request, Build& build);
  Held Occupy(const Request& request, const Match& match);
  void AddBlock(Held& held);
  void AddChunk(Request& request, std::int32_t chunk, Build& build);
  void FinishIfLast(Request& request);
  void Publish(const Request& request, Held& held);

  void Settle(StepId committed);
  void Accept(Request& request, Token token, Deltas& deltas);
  [[nodiscard]] static Finish HowItEnds(const Request& request);
  void End(Request& request);

  void InsertRunning(Request& request);
  void RemoveRunning(const Request& request);
  void AuditRequests() const;
  void AuditShares() const;
  void AuditHeld(const Request& request, const Held& held) const;

  const Config config_;
  PrefixCache cache_;
  BlockTables tables_;

  // Slot map of requests. Entries and generations are parallel.
  std::vector<std::unique_ptr<Request>> entries_;
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint32_t> free_entries_;
  std::unordered_map<RequestId, std::uint32_t> by_id_;  // looked up, never iterated

  std::map<Rank, Request*> waiting_;  // Waiting, and Retracted with all results in
  std::vector<Request*> running_;     // ascending by rank: owners of a slot
  std::int32_t num_finishing_ = 0;

  std::deque<InFlight> in_flight_;  // oldest first
  StepId last_step_ = 0;
  StepId committed_ = 0;
  std::uint64_t arrivals_ = 0;
  double last_now_ = 0;
  Stats counters_;  // only the counters; gauges are read where they live
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_SCHEDULER_H_
