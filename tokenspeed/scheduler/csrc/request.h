// One request: what was asked, what is known of its tokens, and its state.
#ifndef TOKENSPEED_SCHEDULER_REQUEST_H_
#define TOKENSPEED_SCHEDULER_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "digest.h"
#include "ids.h"
#include "policy.h"
#include "states.h"
#include "ticket.h"

namespace tokenspeed {

// What `Scheduler::Submit` is asked. The spans are read during the call only.
struct Submission {
  RequestId id = 0;
  std::span<const Token> tokens;
  std::int32_t max_tokens = 0;
  std::span<const Token> stop_token_ids;
  std::int32_t min_tokens = 0;
  std::int32_t priority = 0;  // higher goes first
  std::string_view salt = {};
  bool read_prefix_cache = true;
  double now = 0;  // seconds of any monotonic clock, the same as for Step
  // Seconds that it may wait to be admitted, all its waits together. The timer stands still while
  // somebody else is to act: while it runs, or its results are in flight.
  double max_wait_s = std::numeric_limits<double>::infinity();
  PeerId peer = 0;  // of the prefill and decode roles: the hand-over it is part of
};

// What disk and remote were asked for a request, and what they said.
struct Lookup {
  std::int32_t begin = 0;      // first column asked for
  std::int32_t questions = 0;  // tickets without an answer
  std::vector<Tier> has;       // by column, then group; kNone: nowhere
};

// Invariant: digests cover exactly the full blocks of `tokens` (none with the cache off).
// In the order of how often it is read: each step reads the beginning, of every row.
struct alignas(64) Request {
  State state = Waiting{};
  RequestId id = 0;
  Handle handle;
  std::vector<Token> tokens;  // prompt, then every accepted token
  std::int32_t prompt_len = 0;
  std::int32_t max_tokens = 0;
  std::vector<Token> stop_token_ids;  // sorted
  std::vector<Digest> digests;
  std::int32_t min_tokens = 0;
  bool read_prefix_cache = true;
  bool read_host = true;  // until a load from there failed
  bool admitted_before = false;
  Rank rank;
  double arrived_s = 0;
  double wait_left_s = 0;  // what is left of Submission::max_wait_s
  double queued_s = 0;     // since when it waits; of no meaning while it does not
  PeerId peer = 0;         // while it is part of a hand-over
  std::unique_ptr<Lookup> lookup;  // while it is Fetching
  Digest root;

  [[nodiscard]] std::int32_t known() const { return static_cast<std::int32_t>(tokens.size()); }
  [[nodiscard]] std::int32_t generated() const { return known() - prompt_len; }
};

inline bool Before(const Request* a, const Request* b) { return a->rank < b->rank; }

// No token has a negative id: those stand for "on the device" and "none".
inline bool AnyNegative(std::span<const Token> tokens) {
  return std::any_of(tokens.begin(), tokens.end(), [](Token token) { return token < 0; });
}

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_REQUEST_H_
