// The scheduler of one engine: who computes what in the next step, and on which blocks.
#ifndef TOKENSPEED_SCHEDULER_SCHEDULER_H_
#define TOKENSPEED_SCHEDULER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "block_table.h"
#include "claim.h"
#include "config.h"
#include "host_tier.h"
#include "ids.h"
#include "peers.h"
#include "policy.h"
#include "prefix_cache.h"
#include "reports.h"
#include "request.h"
#include "request_map.h"
#include "rules.h"
#include "step.h"
#include "step_builder.h"
#include "ticket.h"
#include "wait_queue.h"

namespace tokenspeed {

enum class SubmitResult : std::uint8_t {
  kAccepted,
  kDuplicate,    // a live request has this id
  kEmpty,        // no prompt token
  kTooLong,      // prompt + max_tokens > max_model_len
  kNeverFits,    // needs more blocks than the pool has
  kExceedsStep,  // chunked prefill is off and the prompt is longer than a step
  kQueueFull,    // max_running + max_waiting requests are live
  kPeerInUse,    // another hand-over has this peer id, or one that is not through yet
};

// Whether a request would be accepted now, and the figures that decide: it needs `needed` of what
// there is `limit` of. Tokens for kTooLong and kExceedsStep, blocks for kNeverFits, live requests
// for kQueueFull, tokens for kAccepted and kEmpty.
struct Judgement {
  SubmitResult result = SubmitResult::kAccepted;
  std::int64_t needed = 0;
  std::int64_t limit = 0;
};

// The cost of a call is the size of what it changes: a step costs O(running + blocks taken +
// tokens of prefill rows), whatever is cached, waiting or long; Submit costs O(prompt).
//
// Deterministic: the same calls give the same Steps. No clock, thread or I/O inside.
// Not thread-safe. Steps handed out are immutable and may outlive the scheduler.
//
// Guarantees
//   - A request that was accepted ends exactly once: in a Delta with a Finish (of Commit, or of
//     TakeEnded), or by Abort.
//   - With no step and no transfer in flight, no peer at work and a live request, MakeStep returns a
//     step, or ends a request whose wait is over or for which quarantine left too little room.
//   - A block or slot is not reused before every step, transfer and peer that may touch it is through.
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

  // What Submit would say of a request of this size, but for its id. REQUIRES: no count negative.
  [[nodiscard]] Judgement Judge(std::int64_t prompt_len, std::int64_t max_tokens) const;

  // Ends a request in any state; false when the id is not live. No Delta comes for it afterwards.
  bool Abort(RequestId id);

  // The next step, or nullptr when nothing can be scheduled until something is committed,
  // submitted or aborted.
  // REQUIRES: at most in_flight_depth steps are in flight (else std::logic_error).
  std::shared_ptr<const Step> MakeStep(double now);

  // The tokens sampled by the oldest step in flight, in row order: `counts` of them per row with
  // samples = 1, the drafts that stood and one more; without `counts` one per such row. Tokens past
  // the end of a request are dropped. Of a row's tokens the last `forced` were not sampled: they are
  // what must follow, and are computed in one row. What is in flight for that request brings nothing
  // more than is known then.
  // Throws std::invalid_argument, and changes nothing, for another step, a count that no row of its
  // width has, a wrong sum, a negative token, or tokens forced where they cannot be: in the prefill
  // role, and past drafts in flight.
  Deltas Commit(StepId step, std::span<const Token> tokens,
                std::span<const std::int32_t> counts = {},
                std::span<const std::int32_t> forced = {});

  // What movers and peers report. All of it or nothing: throws std::invalid_argument, which names
  // the report, and changes nothing, when one of them cannot be: an unknown ticket, a wrong number
  // of results, a manifest that does not fit, two reports of one transfer or peer. What comes late
  // for a request that ended, or from a peer that is not known any more, is dropped.
  Deltas ApplyReports(std::span<const Report> reports, double now);

  // Requests that ended outside of Commit and ApplyReports since the last call, without a token.
  Deltas TakeEnded() { return std::exchange(ended_, {}); }

  // Prompt and accepted tokens. Throws std::invalid_argument when the id is not live. The span is
  // valid until the next call.
  [[nodiscard]] std::span<const Token> Tokens(RequestId id) const;

  // Keeps the longest cached prefix of `tokens` from eviction until `now` + `ttl_s`. Returns how many
  // tokens that is. Pins yield: before anybody is preempted or waits for blocks that pins hold,
  // the pin that ends first is dropped. Throws std::invalid_argument like Submit.
  std::int32_t PinPrefix(std::span<const Token> tokens, std::string_view salt, double ttl_s,
                         double now);

  // The digests of the full blocks of `tokens`: what PrefixEvents of group 0 speak of.
  [[nodiscard]] std::vector<Digest> DigestsOf(std::span<const Token> tokens,
                                              std::string_view salt) const;

  // What the prefix cache stored and removed since the last call; empty unless configured.
  std::vector<PrefixEvent> TakePrefixEvents() { return cache_.TakeEvents(); }

  // Everything that can be found now, in order of blocks. O(pool).
  [[nodiscard]] std::vector<Digest> CachedDigests() const;

  // Forgets every cached prefix; what is being computed now is not published afterwards.
  // Returns how many blocks were forgotten. O(pool).
  std::int32_t ResetPrefixCache();

  [[nodiscard]] Stats GetStats() const;
  // Which cells of the rule table were taken so far.
  [[nodiscard]] const Trail& trail() const { return trail_; }
  [[nodiscard]] const BlockTables& tables() const { return tables_; }
  [[nodiscard]] const Config& config() const { return config_; }

  // Recomputes every count, list and relation from scratch. Throws Broken. O(everything).
  void Audit() const;

 private:
  [[nodiscard]] double LeadOf(const Submission& submission, const Request& request) const;
  void ExtendDigests(Request& request) const;

  void ExpireWaiting(double now);

  // The three passes of a step, and their order.
  void MakeRows(StepBuilder& build);
  void Decode(StepBuilder& build, Mix& mix);
  std::vector<Request*> DecodeRunning(StepBuilder& build);
  void ComputeRuns(std::span<Request* const> runs, StepBuilder& build);
  void ServePrompts(StepBuilder& build);
  [[nodiscard]] bool IsPromptInLine(const StepBuilder& build) const;
  std::size_t AdmitBefore(const Rank* rank, StepBuilder& build);

  [[nodiscard]] std::int32_t NextWidth(const Request& request, const Held& held) const;
  bool Grow(Held& held, const Request& request, std::int32_t width, StepBuilder& build);
  bool MakeRoom(const Request& request, StepBuilder& build);
  void Slide(Held& held);
  void TurnStates(const Request& request, Held& held);
  [[nodiscard]] bool IsCheckpoint(const Request& request, const Held& held) const;
  void PublishStates(const Request& request, const Held& held);
  void PublishTail(const Request& request, const Held& held);
  [[nodiscard]] std::int32_t NextChunk(const Request& request, std::int32_t scheduled,
                                       const StepBuilder& build) const;
  [[nodiscard]] Request* VictimBehind(const Request& request) const;
  [[nodiscard]] bool FreesBlocks(const Held& held) const;
  [[nodiscard]] bool BlocksAreComing() const;
  void Preempt(Request& victim, StepBuilder& build);
  void Requeue(Request& request);
  void EndStalled();
  bool DropFirstPin();
  void DropPinsUntil(double now);
  bool TryAdmit(Request& request, StepBuilder& build);
  [[nodiscard]] bool IsStillBlocked(const Request& request, const Match& match) const;
  std::vector<Claim::Entry> ClaimBlocks(const Request& request, const Match& match,
                                        std::int32_t columns, bool own_states);
  [[nodiscard]] std::int64_t NeedsAfter(const Request& request, std::int32_t columns) const;
  [[nodiscard]] std::int64_t Promised() const;
  Held Occupy(const Request& request, const Match& match, std::int32_t columns,
              std::vector<Claim::Entry>& claimed, bool own_states);
  void CopyTail(Held& held, const Match& match, std::vector<Claim::Entry>& claimed,
                StepBuilder& build);
  [[nodiscard]] bool IsState(std::int32_t group) const {
    return config_.groups[static_cast<std::size_t>(group)].kind == CacheGroup::Kind::kState;
  }
  void AddColumn(Held& held);
  void AddChunk(Request& request, std::int32_t chunk, StepBuilder& build);
  StepBuilder::Admission Enter(Request& request, const Held& held);
  void FinishIfLast(Request& request);
  void Publish(const Request& request, Held& held);

  void Settle(StepId committed);
  void CheckCounts(const Step& step, std::span<const Token> tokens,
                   std::span<const std::int32_t> counts,
                   std::span<const std::int32_t> forced) const;
  void Accept(Request& request, std::span<const Token> tokens, std::int32_t forced,
              std::int32_t drafts, Deltas& deltas);
  void Overtake(Request& request);
  void Extend(Request& request, std::span<const Token> tokens, Deltas& deltas);
  [[nodiscard]] static Finish HowItEnds(const Request& request);
  void End(Request& request);
  void Fail(Request& request, Finish how, Deltas& deltas);

  // Transfers: transfers.cc.
  Ticket NewTicket(Purpose purpose, Tier source, Tier destination);
  void Start(Ticket ticket, StepBuilder& build);
  void DropTicket(const Ticket& ticket);
  static void HoldUntil(PrefixCache& cache, BlockId block, const Fence& fence);
  void StartTransfers(StepBuilder& build);
  void ExpireTransfers(double now);
  [[nodiscard]] std::string Objection(const Report& report) const;
  void Take(const report::TransferDone& done, Deltas& deltas);
  void Take(const report::TransferLost& lost, Deltas& deltas);
  void Take(const report::PeerReady& ready, Deltas& deltas);
  void Take(const report::PeerProgress& progress, Deltas& deltas);
  void Take(const report::PeerDelivered& delivered, Deltas& deltas);
  void Take(const report::PeerGone& gone, Deltas& deltas);
  void Lose(Ticket& ticket, Deltas& deltas);
  void Follow(Ticket& ticket, std::span<const std::uint8_t> results, Deltas& deltas);
  void PassGate(Gate gate);

  // The tiers below the device: tiers.cc.
  void Offer(BlockId block, const Digest& digest, std::int32_t group, std::int32_t column,
             StepId filled_by);
  void StartWriteBacks(StepBuilder& build);
  void StartLookups(StepBuilder& build);
  void StartGets(StepBuilder& build);
  void StartPuts(StepBuilder& build);
  void KeepOnHost(Ticket& ticket, std::span<const std::uint8_t> results);
  void NoteAnswer(Request& request, const Ticket& ticket, std::span<const std::uint8_t> results);
  void GotOne(Request& request);
  void Ask(Request& request, std::int32_t begin, std::int32_t end, StepBuilder& build);
  std::int32_t Get(const Request& request, StepBuilder& build);
  [[nodiscard]] std::span<const Digest> Findable(const Request& request) const;

  // Blocks that somebody else fills: arrivals.cc.
  void AdmitLoading(Request& request, Held held, StepBuilder& build);
  void AdmitRestoring(Request& request, Held held, std::int32_t matched, StepBuilder& build);
  void AdmitReceiving(Request& request, Held held, std::int32_t matched, StepBuilder& build);
  void Arrive(Request& request, const std::vector<Move>& moves,
              const std::vector<Digest>& digests);
  void Miss(Request& request);
  [[nodiscard]] bool FitsOnHost(const Request& request, const Held& held) const;
  template <typename Visit>
  void ForImage(const Held& held, Visit visit) const;
  [[nodiscard]] BlockId OnHost(const Request& request, const Held& held, std::int32_t group,
                               std::int32_t column) const;
  void StoreImage(Request& victim, StepBuilder& build);
  void EndImage(Request& request, const Ticket& ticket, bool whole);

  // Hand-overs between engines: roles.cc.
  void Join(Request& request, PeerId id);
  void SendComputed(const Request& request, const Held& held, bool last, StepBuilder& build);
  void OfferWord(Peer& peer);
  void StartWords(StepBuilder& build);
  void Part(Request& request);
  void Depart(Peer& peer, bool quiet, Deltas& deltas);
  void PassPeer(Peer& peer);
  void Sent(const Ticket& ticket, bool whole, bool lost, Deltas& deltas);
  void Told(const Ticket& ticket, bool whole, bool lost, Deltas& deltas);
  void Said(const Ticket& ticket, Deltas& deltas);
  void Close(const Peer& peer);
  void ExpirePeers(double now);
  void StartTimer(Peer& peer, double now);
  [[nodiscard]] std::string MisfitOf(const report::PeerReady& ready) const;

  void InsertRunning(Request& request);
  void RemoveRunning(const Request& request);
  void AuditRequests() const;
  void AuditShares() const;
  void AuditWindow(const Held& held, std::size_t group) const;
  void AuditHeld(const Request& request, const Held& held) const;
  void AuditTiers() const;

  const Config config_;
  const std::int32_t num_token_groups_;
  const std::int32_t num_state_groups_;
  std::unique_ptr<HostTier> host_;  // nullptr: there is none
  PrefixCache cache_;
  BlockTables tables_;

  RequestMap requests_;
  WaitQueue waiting_;                 // Waiting, and Retracted with all results in
  std::vector<Request*> running_;     // ascending by rank: owners of a slot
  std::int32_t num_finishing_ = 0;    // Finishing and PrefillDone: their blocks come back

  std::multimap<double, std::vector<BlockLease>> pins_;  // by the time they end
  std::int32_t num_pinned_ = 0;

  std::deque<InFlight> in_flight_;  // oldest first
  StepId last_step_ = 0;
  StepId committed_ = 0;
  std::uint64_t arrivals_ = 0;
  std::int32_t starved_steps_ = 0;  // see Mix
  std::int32_t full_steps_ = 0;
  // The last request that did not fit, and what would have to change before it may.
  struct Blocked {
    std::uint64_t arrival = 0;
    std::uint64_t rests = 0;  // of the pool
    std::size_t running = 0;
    Match match;
  };
  Blocked blocked_;
  Deltas ended_;                    // outside of a commit

  TicketBook tickets_;
  std::deque<Handle> lookups_;  // to be looked for on disk and remote
  std::deque<Handle> gets_;     // whose questions are answered
  std::map<PeerId, Peer> peers_;
  std::deque<PeerId> words_;                            // to be said with the next step
  std::deque<std::pair<double, PeerId>> peer_timers_;  // ascending; of peers that may have moved on
  double last_now_ = 0;
  Trail trail_{};
  Stats counters_;  // only the counters; gauges are read where they live
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_SCHEDULER_H_
