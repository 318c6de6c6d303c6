// What the data mover and the peers report. A batch of reports is judged whole, then applied.
#ifndef TOKENSPEED_SCHEDULER_REPORTS_H_
#define TOKENSPEED_SCHEDULER_REPORTS_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "ids.h"
#include "ticket.h"

namespace tokenspeed::report {

// The transfer touches nothing any more. One result per block: 1 is success, said explicitly; of a
// question, 1 is "here". Also how a lost transfer is found again: its data is not used then, but
// its blocks are.
struct TransferDone {
  TicketId ticket = 0;
  std::vector<std::uint8_t> results;
};

// Nobody can say whether the transfer still touches its blocks.
struct TransferLost {
  TicketId ticket = 0;
};

// To the prefill role: where the peer wants the blocks of a prompt. It has `prefix_len` tokens.
struct PeerReady {
  PeerId peer = 0;
  std::int32_t prefix_len = 0;
  std::int32_t prompt_len = 0;
  std::vector<Move> blocks;  // `destination` by group and column
};

// To the decode role: the peer is at work; its timer starts anew.
struct PeerProgress {
  PeerId peer = 0;
};

// To the decode role: all blocks are written, the peer will not touch them again, and this is the
// first token.
struct PeerDelivered {
  PeerId peer = 0;
  Token token = 0;
};

// The peer gave up or cannot be reached. `quiet`: it will not touch blocks here again, which may
// also be said later of a peer that is gone already.
struct PeerGone {
  PeerId peer = 0;
  bool quiet = false;
};

}  // namespace tokenspeed::report

namespace tokenspeed {

using Report = std::variant<report::TransferDone, report::TransferLost, report::PeerReady,
                            report::PeerProgress, report::PeerDelivered, report::PeerGone>;

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_REPORTS_H_
