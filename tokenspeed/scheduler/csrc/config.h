// What the scheduler is told once, and the figures it reports.
#ifndef TOKENSPEED_SCHEDULER_CONFIG_H_
#define TOKENSPEED_SCHEDULER_CONFIG_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "digest.h"

namespace tokenspeed {

// Throws std::invalid_argument with `message` unless `condition` holds: the caller's mistake.
void Require(bool condition, const std::string& message);

// A cache group: layers that keep the same thing of a sequence. All groups take their blocks from
// one pool, so a block's bytes are the largest need of any of them.
struct CacheGroup {
  enum class Kind : std::uint8_t {
    kFull,    // every token stays
    kWindow,  // a query reads itself and the `window` - 1 tokens before it; older blocks go back
    kState,   // one block is the state after all tokens so far; a row has two: read, written
  };
  Kind kind = Kind::kFull;
  std::int32_t window = 0;  // tokens; of kWindow only
};

// What an engine does of a request.
enum class Role : std::uint8_t {
  kFused,    // all of it
  kPrefill,  // the prompt and the first token; a peer goes on
  kDecode,   // what follows a prompt that a peer computed
};

struct Config {
  std::int32_t num_blocks = 0;       // with the null block: num_blocks - 1 are usable
  std::int32_t block_size = 0;       // tokens
  std::int32_t max_running = 0;      // slots
  // At least max_running * (1 + max_draft_tokens), so that no decode waits for budget.
  std::int32_t max_step_tokens = 0;
  std::int32_t max_model_len = 0;    // tokens of prompt and output together
  bool prefix_cache = true;
  bool chunked_prefill = true;
  std::int32_t in_flight_depth = 0;  // 1: the next step may be made before this one is committed
  DigestKey digest_key;
  double ageing_s = 30;  // seconds of waiting that outweigh one priority class
  std::vector<CacheGroup> groups = std::vector<CacheGroup>(1);
  bool prefix_events = false;  // record what the prefix cache stores and removes
  // Prompt tokens in a step that also decodes, at most: what an answer waits for its neighbours.
  std::int32_t max_mixed_tokens = std::numeric_limits<std::int32_t>::max();
  // Of such a step once prompts have filled these steps for so long that they do not keep up: they
  // may then take twice as many after every `backlog_steps` steps, up to this. Where it is not more
  // than `max_mixed_tokens`, they never take more.
  std::int32_t max_backlog_tokens = 0;
  std::int32_t backlog_steps = 8;
  // After that many steps beside decodes in which the first prompt in line got nothing (it must
  // not be cut and finds no room), a step is its own.
  std::int32_t patience_steps = 32;
  double cache_lead_s = 0;  // seconds that a wholly cached prompt goes before others of its class
  // Live requests beyond `max_running`; more are refused.
  std::int32_t max_waiting = std::numeric_limits<std::int32_t>::max();
  // Guessed tokens that a decode row carries at most behind its own. The device makes them up and
  // verifies them in the same step; a commit says how many stood.
  std::int32_t max_draft_tokens = 0;
  // True: more may be admitted than the pool holds if all of them grow as far as they may; whoever
  // is last in rank is preempted then. False: the worst remaining needs of all who are admitted are
  // covered at any time, and nobody is ever preempted.
  bool overcommit = true;
  // The shortest tail, in tokens, that is worth a copy; 0: tails are not shared. Models with state
  // groups share none: there is no state after a tail.
  std::int32_t min_tail_tokens = 0;

  Role role = Role::kFused;
  std::int32_t num_host_blocks = 0;  // of the host tier, with a null block; 0: there is none
  bool disk = false;                 // stores below the host tier
  bool remote = false;
  std::int32_t transfer_credits = 256;  // blocks that transfers nobody must have move at once
  double transfer_timeout_s = 30;       // of a transfer that can begin: then it is lost
  double peer_timeout_s = 120;          // of a peer that shows no sign of work
  double absent_s = 10;                 // how long a store is not asked again for what it lacks
  std::int32_t layers_per_transfer = 0;  // layers that go to a peer in one piece; 0: all at once

  // Throws std::invalid_argument naming the field and the way out.
  void Validate() const;

  // Blocks that `tokens` take.
  [[nodiscard]] std::int32_t BlocksFor(std::int64_t tokens) const {
    return static_cast<std::int32_t>((tokens + block_size - 1) / block_size);
  }
  [[nodiscard]] std::int32_t max_blocks_per_request() const { return BlocksFor(max_model_len); }

  // Groups that keep tokens: each takes a block whenever a request grows by one.
  [[nodiscard]] std::int32_t num_token_groups() const;
  [[nodiscard]] std::int32_t num_groups() const { return static_cast<std::int32_t>(groups.size()); }
  // Columns of a group in a row of the block tables.
  [[nodiscard]] std::vector<std::int32_t> row_lengths() const;
  // The most blocks that a request with this many computed tokens ever holds, over all groups.
  // A window group holds a prompt's blocks from its admission and gives them back as it slides.
  //
  // The one statement of a request's need: submission is judged by it, and so is what a caller
  // promises (`max_request_tokens`).
  [[nodiscard]] std::int64_t DemandOf(std::int64_t tokens) const;
  // Every request of at most this many tokens, prompt and output together, can be accepted: what
  // the pool and `max_model_len` allow. (One more fits where the last is an output: that one is
  // never computed.)
  [[nodiscard]] std::int64_t max_request_tokens() const;
};

struct Stats {
  std::int32_t running = 0;        // requests that own a slot
  std::int32_t waiting = 0;        // submitted or preempted, to be admitted
  std::int32_t slots_used = 0;     // of running requests, or fenced
  std::int32_t blocks_total = 0;   // usable: used + cached + free
  std::int32_t blocks_used = 0;    // held by running requests, or fenced
  std::int32_t blocks_cached = 0;  // held by nobody, evictable
  std::int32_t blocks_free = 0;
  std::int32_t blocks_pinned = 0;  // shares that pins hold; their blocks count as used
  std::int32_t blocks_quarantined = 0;  // a transfer or peer whose outcome is unknown may touch them
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;         // of requests admitted for the first time
  std::uint64_t cached_prompt_tokens = 0;  // of these, found in the prefix cache
  std::uint64_t generated_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t finished = 0;
  std::uint64_t aborted = 0;
  std::uint64_t failed = 0;  // ended because a peer failed, or quarantine left too little room
  std::uint64_t expired = 0;  // ended because they waited longer than they may
  std::int32_t host_blocks_total = 0;  // of the host tier, as on the device
  std::int32_t host_blocks_used = 0;
  std::int32_t host_blocks_cached = 0;
  std::int32_t host_blocks_free = 0;
  std::int32_t host_blocks_quarantined = 0;
  std::int32_t transfers_in_flight = 0;  // without the lost ones
  std::int32_t transfers_lost = 0;       // whose outcome is still unknown
  std::int32_t peers = 0;                // hand-overs that are not through
  std::uint64_t transfers_failed = 0;    // with a block that failed
  std::uint64_t host_blocks_loaded = 0;  // into blocks of admitted requests
  std::uint64_t images_stored = 0;
  std::uint64_t images_restored = 0;
  double head_wait_s = 0;  // how long the next in line had waited at the last MakeStep
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_CONFIG_H_
