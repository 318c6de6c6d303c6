// What the scheduler prefers. Pure functions over values: no state, no clock, no container.
#ifndef TOKENSPEED_SCHEDULER_POLICY_H_
#define TOKENSPEED_SCHEDULER_POLICY_H_

#include <compare>
#include <cstdint>
#include <span>

namespace tokenspeed {

// The one order of requests: who is admitted first, who is served first, and, read from the end,
// who is preempted first. Total, and fixed at submission, so nothing is ever re-sorted.
struct Rank {
  double due = 0;             // seconds
  std::uint64_t arrival = 0;  // counts submissions; breaks ties
  friend auto operator<=>(const Rank&, const Rank&) = default;
};

// First come, first served within a class. One class more is worth `ageing_s` seconds of
// waiting: a request that waited that much longer overtakes, so no class can starve another.
//
// `lead_s` lets a request go before others of its class by that many seconds, see LeadOf. Whoever
// arrives more than the longest lead after a request of its class never overtakes it.
Rank RankOf(double arrived_s, std::int32_t priority, double ageing_s, std::uint64_t arrival,
            double lead_s = 0);

// Cache-aware order: a prompt that is cached goes first while it is, by `longest_s` seconds if all
// of it is cached, by its cached part of them otherwise. In [0, longest_s].
// REQUIRES: 0 <= cached <= prompt, 0 < prompt.
double LeadOf(std::int64_t cached, std::int64_t prompt, double longest_s);

// How many of `remaining` prompt tokens go into a step with `budget` tokens left.
//
// Chunked: as many as fit. Not chunked: all or none, except for what no whole step could hold
// (the recomputation of a request that outgrew a step), which is chunked as a last resort.
// Positive whenever `budget` is the whole `step_tokens`: progress is always possible.
std::int32_t ChunkOf(std::int32_t remaining, std::int32_t budget, std::int32_t step_tokens,
                     bool chunked);

// A chunk that leaves its state where others can go on from it: at the end of the last block that
// a repetition of the same prompt may find, or of the last whole block. At least one token.
// REQUIRES: 0 < chunk, scheduled + chunk <= known. 0 stays 0.
std::int32_t StopAtBlock(std::int32_t scheduled, std::int32_t chunk, std::int32_t known,
                         std::int32_t block_size);

// What decodes and prompts want of a step.
struct Mix {
  std::int32_t decode_tokens = 0;   // of the decode rows
  std::int32_t step_tokens = 0;     // of a whole step
  std::int32_t mixed_tokens = 0;    // prompt tokens beside decodes at most
  std::int32_t starved_steps = 0;   // steps in a row whose first prompt in line got nothing
  std::int32_t patience_steps = 0;  // how many of them are too many
  std::int32_t backlog_tokens = 0;  // prompt tokens beside decodes at most, where prompts pile up
  std::int32_t full_steps = 0;      // steps beside decodes in a row that prompts filled
  std::int32_t backlog_steps = 1;   // how many of them double what prompts may take; positive
};

// Whether the prompts have waited long enough: the next step is theirs, and decodes sit it out.
// So a prompt that cannot be cut waits for `patience_steps` steps at most, and decodes sit out one
// step of `patience_steps` + 1 at most.
bool PromptsGoAlone(const Mix& mix);

// Prompt tokens that may join the decode rows: `mixed_tokens`, so that what a decode row waits for
// its neighbours is bounded, and a prompt of up to `backlog_steps` such chunks never makes it wait
// longer. Prompts that fill more steps than that do not keep up: after every `backlog_steps` full
// steps they get twice as much, up to `backlog_tokens`, so that a queue of prompts is worked off at
// a rate near that of the device alone. The first step that they do not fill ends that. Without
// decode rows they get it all. Positive whenever decodes leave a token over: chunks always go on.
std::int32_t PromptBudget(const Mix& mix);

// A running request that may be preempted.
struct Candidate {
  Rank rank;
  bool frees = false;  // some block of it is held by nobody else
};

// Who is preempted: the last in rank of those that free something, else (many may share what
// each of them frees) the last in rank. -1 without candidates.
std::int32_t ChooseVictim(std::span<const Candidate> candidates);

// Whether a retracted request is read back from its image, which holds its first `in_image` tokens,
// where the device's cache still holds the first `cached`. What the cache holds costs nothing and
// the image a transfer of all its blocks, so the image has to save computing.
bool RestoresImage(std::int32_t in_image, std::int32_t cached);

// Tokens of a decode row: its own and as many drafts as are any use.
struct Width {
  std::int32_t drafts = 0;        // at most
  std::int32_t left = 0;          // tokens that the request may still get, if all in flight stand
  std::int32_t to_block_end = 0;  // until the next checkpoint of a state; 0: none is wanted
  std::int32_t room = 0;          // places in its blocks, and in those that nobody holds
};

// 0 where everything may be on its way already. A row stops where a state is to be kept: the state
// after a row is that after its last token that stood, so checkpoints fall exactly on block ends.
// REQUIRES: room > 0.
std::int32_t WidthOf(const Width& width);

// Blocks once a request has taken what it needs to be admitted.
struct Room {
  std::int64_t available = 0;  // that can be had
  std::int64_t growing = 0;    // that those who already run take next, one each
  // The worst remaining needs of all who are admitted, this one included, where that is promised.
  std::int64_t promised = 0;
};

// A data-parallel replica, as the router sees it for one request.
struct Replica {
  std::int64_t cached = 0;  // tokens of the request's prompt that it has cached
  std::int64_t load = 0;    // tokens that it still has to compute
};

// The replica with the most of the prompt cached, among those whose load is at most `slack` tokens
// above the least loaded one; then the least loaded; then the first. -1 without replicas.
// The load bound holds whatever is cached, so a popular prefix cannot pile up on one replica.
std::int32_t ChooseReplica(std::span<const Replica> replicas, std::int64_t slack);

// Whether a request that has its blocks may start. One block per running request stays back, so that
// an admission is not undone by the next tokens of the others; and what was promised. With nobody
// running, what fits the pool starts: whoever was not refused at submission can be admitted.
bool MayAdmit(const Room& room);

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_POLICY_H_
