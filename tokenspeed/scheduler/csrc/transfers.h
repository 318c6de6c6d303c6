// The transfers that a Step starts, as arrays.
#ifndef TOKENSPEED_SCHEDULER_TRANSFERS_H_
#define TOKENSPEED_SCHEDULER_TRANSFERS_H_

#include <cstdint>
#include <vector>

#include "digest.h"
#include "ids.h"
#include "ticket.h"

namespace tokenspeed {

// T transfers of M blocks together, in the order in which a mover should take them up.
struct Transfers {
  // One entry per transfer.
  std::vector<TicketId> tickets;
  std::vector<std::uint8_t> sources;       // Tier
  std::vector<std::uint8_t> destinations;  // Tier; kNone: only ask what the source has
  std::vector<std::uint8_t> guards;        // Guard
  std::vector<std::uint8_t> words;         // Word
  std::vector<PeerId> peers;
  std::vector<StepId> after;  // begin once this step has run; 0: at once
  std::vector<Token> tokens;  // of a hand-over, else kNoToken
  std::vector<std::int32_t> prefix_lens;
  std::vector<std::int32_t> prompt_lens;
  std::vector<std::int32_t> layers;  // of a send or receive: layers per piece; 0: all at once
  std::vector<std::int32_t> begins;  // [T + 1]: its blocks are moves[begins[i]:begins[i + 1]]

  // One entry per block.
  std::vector<Move> moves;
  std::vector<Digest> digests;

  [[nodiscard]] bool empty() const { return tickets.empty(); }

  void Add(const Ticket& ticket, std::int32_t layers_per_piece) {
    tickets.push_back(ticket.id);
    sources.push_back(static_cast<std::uint8_t>(ticket.source));
    destinations.push_back(static_cast<std::uint8_t>(ticket.destination));
    guards.push_back(static_cast<std::uint8_t>(ticket.guard));
    words.push_back(static_cast<std::uint8_t>(ticket.word));
    peers.push_back(ticket.peer);
    after.push_back(ticket.after);
    tokens.push_back(ticket.token);
    prefix_lens.push_back(ticket.prefix_len);
    prompt_lens.push_back(ticket.prompt_len);
    layers.push_back(layers_per_piece);
    if (begins.empty()) begins.push_back(0);
    moves.insert(moves.end(), ticket.moves.begin(), ticket.moves.end());
    digests.insert(digests.end(), ticket.digests.begin(), ticket.digests.end());
    begins.push_back(static_cast<std::int32_t>(moves.size()));
  }

  void AddTo(StepHash& hash) const {
    if (empty()) return;
    hash.AddAll(tickets);
    hash.AddAll(sources);
    hash.AddAll(destinations);
    hash.AddAll(guards);
    hash.AddAll(words);
    hash.AddAll(peers);
    hash.AddAll(after);
    hash.AddAll(tokens);
    hash.AddAll(prefix_lens);
    hash.AddAll(prompt_lens);
    hash.AddAll(layers);
    hash.AddAll(begins);
    for (const Move& move : moves) {
      hash.Add(static_cast<std::uint64_t>(move.group));
      hash.Add(static_cast<std::uint64_t>(move.column));
      hash.Add(static_cast<std::uint64_t>(move.source));
      hash.Add(static_cast<std::uint64_t>(move.destination));
    }
    for (const Digest& digest : digests) {
      hash.Add(digest.low);
      hash.Add(digest.high);
    }
  }
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_TRANSFERS_H_
