// Requests that two engines share: one computes the prompt, the other goes on from there.
#ifndef TOKENSPEED_SCHEDULER_PEERS_H_
#define TOKENSPEED_SCHEDULER_PEERS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "config.h"
#include "digest.h"
#include "ids.h"
#include "ticket.h"

namespace tokenspeed {

struct Columns {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// The blocks of a group that a peer needs which has `prefix_len` tokens, to decode behind a prompt
// of `prompt_len`: all later ones of a full group, those that the next query reads of a window,
// one state. What a manifest lists, on either side.
inline Columns ColumnsFor(const Config& config, const CacheGroup& group, std::int32_t prefix_len,
                          std::int32_t prompt_len) {
  if (group.kind == CacheGroup::Kind::kState) return {0, 1};
  const std::int32_t reads = group.kind == CacheGroup::Kind::kWindow
                                 ? std::max(0, prompt_len - group.window + 1)
                                 : 0;
  return {std::max(prefix_len, reads) / config.block_size, config.BlocksFor(prompt_len)};
}

// One hand-over, from submission until neither engine can touch the other's blocks. It outlives
// its request when that ends early.
struct Peer {
  PeerId id = 0;
  Handle request;

  // Prefill role.
  std::vector<std::vector<BlockId>> destinations;  // by group and column; kNoBlock: not wanted
  std::int32_t sent = 0;                           // leading columns that are sent, or on the way
  std::int32_t sends = 0;                          // transfers on the way, lost ones too
  Token token = kNoToken;                          // the first one, once sampled

  // Decode role.
  bool writes = false;  // it was told of blocks here, and may write them: its gate is open
  bool lost = false;    // it cannot be reached, and nobody can say whether it is through
  bool told = false;    // it has the manifest: its timer runs
  double until = 0;
  std::vector<Move> moves;  // what it writes
  std::vector<Digest> digests;

  bool ended = false;     // the request is over on this side
  bool word_due = false;  // waits for a step that carries its word
  bool parted = false;    // the last word is said
};

// nullptr: no hand-over has this id, any more or at all.
template <typename Peers>
auto* FindIn(Peers& peers, PeerId id) {
  const auto at = peers.find(id);
  return at == peers.end() ? nullptr : &at->second;
}

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_PEERS_H_
