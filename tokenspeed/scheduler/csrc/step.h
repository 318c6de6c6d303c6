// What goes out of the scheduler: a Step to run, and the Deltas of a committed one.
#ifndef TOKENSPEED_SCHEDULER_STEP_H_
#define TOKENSPEED_SCHEDULER_STEP_H_

#include <cstdint>
#include <vector>

#include "block_table.h"
#include "digest.h"
#include "ids.h"
#include "transfers.h"

namespace tokenspeed {

// Of `source` the first `tokens` tokens go to `destination`.
struct Copy {
  BlockId source;
  BlockId destination;
  std::int32_t tokens;
};

// One turn of the loop: R rows, each a request with its query tokens. Decode rows come first
// (one token and its drafts, one sample or more each), then chunks: of tokens that were forced, of
// prompts. Immutable once returned.
struct Step {
  StepId id = 0;
  std::uint64_t digest = 0;  // equal for equal histories of calls
  std::int32_t num_decode_rows = 0;
  std::int32_t num_samples = 0;

  // One entry per row.
  std::vector<RequestId> request_ids;
  std::vector<SlotId> slots;
  std::vector<std::int32_t> query_lens;
  // Tokens cached or computed before the query tokens, if all drafts in flight stand; and how many
  // of them are such drafts: the device, which knows what stood, subtracts what did not.
  std::vector<std::int32_t> context_lens;
  std::vector<std::int32_t> unsure_lens;
  std::vector<std::uint8_t> samples;       // 1: the row ends its tokens and samples the next
  std::vector<std::uint8_t> admitted;      // 1: the request takes this slot with this step
  std::vector<std::int32_t> cached_lens;   // of an admitted row: tokens found in the prefix cache
  std::vector<std::uint8_t> first;         // 1: admitted for the first time

  // Query tokens of all rows; kTokenOnDevice where not yet known: the last token sampled in the
  // slot as a row's first, a draft as any other.
  std::vector<Token> tokens;
  std::vector<DirtyRange> dirty;
  std::vector<Copy> copies;  // of tails: behind every earlier step, before the rows
  Transfers transfers;  // a step may consist of these alone

  [[nodiscard]] std::size_t num_rows() const { return request_ids.size(); }
  // Tokens that a row which samples brings at most: its own, and one for each of its drafts.
  [[nodiscard]] std::int32_t most_samples(std::size_t row) const {
    return static_cast<std::int32_t>(row) < num_decode_rows ? query_lens[row] : 1;
  }

  void Reserve(std::size_t rows) {
    request_ids.reserve(rows);
    slots.reserve(rows);
    query_lens.reserve(rows);
    context_lens.reserve(rows);
    unsure_lens.reserve(rows);
    samples.reserve(rows);
    admitted.reserve(rows);
    cached_lens.reserve(rows);
    first.reserve(rows);
    tokens.reserve(rows);
  }
};

enum class Finish : std::uint8_t {
  kNo = 0,
  kStop = 1,
  kLength = 2,
  kDeadline = 3,    // it waited longer than it may
  kHandedOver = 4,  // the peer has the prompt and the first token
  kPeerFailed = 5,
  kNoRoom = 6,  // quarantine has left too little for it
};

// What a commit brought, in the order of the step's rows. kNoToken where a request ended
// without one.
struct Deltas {
  std::vector<RequestId> request_ids;
  std::vector<Token> tokens;
  std::vector<std::uint8_t> finish;  // Finish

  void Reserve(std::size_t rows) {
    request_ids.reserve(rows);
    tokens.reserve(rows);
    finish.reserve(rows);
  }

  void Add(RequestId id, Token token, Finish how) {
    request_ids.push_back(id);
    tokens.push_back(token);
    finish.push_back(static_cast<std::uint8_t>(how));
  }
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_STEP_H_
