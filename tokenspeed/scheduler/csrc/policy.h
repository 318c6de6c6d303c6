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
Rank RankOf(double arrived_s, std::int32_t priority, double ageing_s, std::uint64_t arrival);

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

struct Room {
  std::int32_t needed = 0;     // blocks the request would take, beyond those it shares
  std::int32_t available = 0;  // blocks that can be had once its shares are claimed
  std::int32_t running = 0;    // requests that already run
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

// Whether a waiting request may start. One block per running request stays back, so that an
// admission is not undone by the next tokens of the others. With nobody running, what fits
// the pool starts: whoever was not refused at submission can be admitted.
bool MayAdmit(const Room& room);

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_POLICY_H_
