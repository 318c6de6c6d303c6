// Disaggregated prefill and decode: one engine computes a prompt, another goes on from there.
//
// Decode admits first: it takes blocks for the whole prompt and tells the peer where they are. The
// prefill engine computes, sends blocks as chunks complete them, and says the first token once
// everything else has arrived. Whoever ends early says so; the decode engine reuses no block before
// the prefill engine has said that it is through with it.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "check.h"
#include "scheduler.h"

namespace tokenspeed {

void Scheduler::Join(Request& request, PeerId id) {
  request.peer = id;
  Peer& peer = peers_[id];
  peer.id = id;
  peer.request = request.handle;
  if (config_.role == Role::kPrefill) request.state = Bootstrapping{};
}

// ---- Prefill ---------------------------------------------------------------------------------

std::string Scheduler::MisfitOf(const report::PeerReady& ready) const {
  const Peer* peer = FindIn(peers_, ready.peer);
  if (peer == nullptr || peer->ended) return "";
  const Request* request = requests_.Find(peer->request);
  if (config_.role != Role::kPrefill ||
      VerdictOf<event::Bootstrap>(request->state) == Verdict::kReject) {
    return "is ready, and nobody waits for that";
  }
  if (ready.prompt_len != request->prompt_len) {
    return "has a prompt of " + std::to_string(ready.prompt_len) + " tokens, not " +
           std::to_string(request->prompt_len);
  }
  if (ready.prefix_len < 0 || ready.prefix_len >= ready.prompt_len ||
      ready.prefix_len % config_.block_size != 0) {
    return "has a prefix of " + std::to_string(ready.prefix_len) + " tokens: not whole blocks";
  }
  std::size_t expected = 0;
  for (const CacheGroup& group : config_.groups) {
    const Columns columns = ColumnsFor(config_, group, ready.prefix_len, ready.prompt_len);
    expected += Index(columns.end - columns.begin);
  }
  std::set<std::pair<std::int32_t, std::int32_t>> named;
  for (const Move& move : ready.blocks) {
    const bool group = move.group >= 0 && move.group < config_.num_groups();
    const Columns columns = group ? ColumnsFor(config_, config_.groups[Index(move.group)],
                                               ready.prefix_len, ready.prompt_len)
                                  : Columns{};
    const bool fits = move.column >= columns.begin && move.column < columns.end &&
                      move.destination > kNullBlock;
    if (!fits || !named.insert({move.group, move.column}).second) {
      return "wants column " + std::to_string(move.column) + " of group " +
             std::to_string(move.group) + " in block " + std::to_string(move.destination);
    }
  }
  if (named.size() == expected) return "";
  return "wants " + std::to_string(named.size()) + " blocks where " + std::to_string(expected) +
         " are needed";
}

void Scheduler::Take(const report::PeerReady& ready, Deltas&) {
  Peer* const found = FindIn(peers_, ready.peer);
  if (found == nullptr || found->ended) return;
  Peer& peer = *found;
  peer.sent = ready.prefix_len / config_.block_size;
  peer.destinations.assign(config_.groups.size(), {});
  for (const Move& move : ready.blocks) {
    std::vector<BlockId>& blocks = peer.destinations[Index(move.group)];
    if (blocks.size() <= Index(move.column)) blocks.resize(Index(move.column) + 1, kNoBlock);
    blocks[Index(move.column)] = move.destination;
  }
  Request& request = *requests_.Find(peer.request);
  Apply(request.state, event::Bootstrap{}, trail_);
  waiting_.Push(request, last_now_);
}

// What a chunk has completed and the peer wants, with the last chunk the rest. It may be cached
// here since long, and computed by this very step: the transfer begins after it.
void Scheduler::SendComputed(const Request& request, const Held& held, bool last,
                             StepBuilder& build) {
  Peer& peer = peers_.at(request.peer);
  const std::int32_t end = last ? config_.BlocksFor(request.prompt_len)
                                : held.scheduled / config_.block_size;
  Ticket ticket = NewTicket(Purpose::kSend, Tier::kDevice, Tier::kPeer);
  ticket.request = request.handle;
  ticket.peer = peer.id;
  ticket.after = build.id();
  const auto add = [&](std::int32_t g, std::int32_t column, BlockId block) {
    const std::vector<BlockId>& wanted = peer.destinations[Index(g)];
    if (Index(column) >= wanted.size() || wanted[Index(column)] == kNoBlock) return;
    ticket.Add({g, column, block, wanted[Index(column)]}, Digest{});
    HoldUntil(cache_, block, Fence::AfterTicket(ticket.id));
  };
  for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
    if (config_.groups[Index(g)].kind == CacheGroup::Kind::kState) {
      if (last) add(g, 0, held.groups[Index(g)][1].id());
      continue;
    }
    for (std::int32_t column = peer.sent; column < end; ++column) {
      add(g, column, held.groups[Index(g)][Index(column)].id());
    }
  }
  peer.sent = std::max(peer.sent, end);
  if (ticket.moves.empty()) return DropTicket(ticket);
  ++peer.sends;
  Start(std::move(ticket), build);
}

// A send is through, or was found; or it failed; or it is lost, and may still read and write.
void Scheduler::Sent(const Ticket& ticket, bool whole, bool lost, Deltas& deltas) {
  Peer* const found = FindIn(peers_, ticket.peer);
  TS_CHECK(found != nullptr, "a hand-over is open while something is on the way");
  Peer& peer = *found;
  if (!lost) --peer.sends;
  if (!whole && !peer.ended) return Fail(*requests_.Find(peer.request), Finish::kPeerFailed, deltas);
  OfferWord(peer);
}

// The word that is due: the hand-over, when all is computed and has arrived; the good-bye, when the
// request is over and nothing is on the way.
void Scheduler::OfferWord(Peer& peer) {
  if (peer.word_due || peer.parted) return;
  if (config_.role == Role::kPrefill && peer.sends > 0) return;
  if (!peer.ended && peer.token == kNoToken) return;
  peer.word_due = true;
  words_.push_back(peer.id);
}

void Scheduler::StartWords(StepBuilder& build) {
  for (; !words_.empty(); words_.pop_front()) {
    Peer& peer = peers_.at(words_.front());
    const bool hands_over = !peer.ended;
    Ticket ticket = NewTicket(Purpose::kWord, Tier::kDevice, Tier::kPeer);
    ticket.request = peer.request;
    ticket.peer = peer.id;
    ticket.word = hands_over ? Word::kHandOver : Word::kAbandon;
    if (hands_over) ticket.token = peer.token;
    Start(std::move(ticket), build);
  }
}

// A word that may not have been heard is followed by a good-bye, again and again: the other side
// keeps blocks for as long as it hears nothing.
void Scheduler::Said(const Ticket& ticket, Deltas& deltas) {
  Peer& peer = peers_.at(ticket.peer);
  peer.word_due = false;
  peer.parted = !ticket.lost;
  if (peer.ended) {
    OfferWord(peer);
  } else {
    Fail(*requests_.Find(peer.request), ticket.lost ? Finish::kPeerFailed : Finish::kHandedOver,
         deltas);
  }
  Close(peer);
}

// ---- Decode ----------------------------------------------------------------------------------

// The peer can act from the moment that it knows the blocks; before, nothing runs against it.
void Scheduler::Told(const Ticket& ticket, bool whole, bool lost, Deltas& deltas) {
  Peer* const peer = FindIn(peers_, ticket.peer);
  if (peer == nullptr || peer->request != ticket.request) return;
  if (whole) {
    peer->told = true;
    StartTimer(*peer, last_now_);
  } else {
    Depart(*peer, !lost, deltas);
  }
}

void Scheduler::StartTimer(Peer& peer, double now) {
  peer.until = now + config_.peer_timeout_s;
  peer_timers_.emplace_back(peer.until, peer.id);
}

void Scheduler::ExpirePeers(double now) {
  for (; !peer_timers_.empty() && peer_timers_.front().first <= now; peer_timers_.pop_front()) {
    Peer* const peer = FindIn(peers_, peer_timers_.front().second);
    if (peer == nullptr || !peer->told || peer->until > now) continue;
    if (peer->writes && !peer->lost) Depart(*peer, false, ended_);
  }
}

void Scheduler::Take(const report::PeerProgress& progress, Deltas&) {
  Peer* const peer = FindIn(peers_, progress.peer);
  if (peer != nullptr && peer->told) StartTimer(*peer, last_now_);
}

void Scheduler::Take(const report::PeerDelivered& delivered, Deltas& deltas) {
  Peer* const found = FindIn(peers_, delivered.peer);
  if (found == nullptr) return;
  Peer& peer = *found;
  Request* request = peer.ended ? nullptr : requests_.Find(peer.request);
  if (request != nullptr) {
    Arrive(*request, peer.moves, peer.digests);
    request->peer = 0;
    peer.ended = true;
    peer.parted = true;
  }
  PassPeer(peer);
  Close(peer);
  if (request == nullptr) return;
  Extend(*request, {&delivered.token, 1}, deltas);
}

void Scheduler::Take(const report::PeerGone& gone, Deltas& deltas) {
  Peer* const peer = FindIn(peers_, gone.peer);
  if (peer == nullptr) return;
  if (config_.role == Role::kPrefill) {
    if (!peer->ended) Fail(*requests_.Find(peer->request), Finish::kPeerFailed, deltas);
    return;
  }
  Depart(*peer, gone.quiet, deltas);
}

// The peer will not deliver. Quiet: it touches nothing here again; else its blocks are lost to it
// until it says so.
void Scheduler::Depart(Peer& peer, bool quiet, Deltas& deltas) {
  if (!peer.ended) Fail(*requests_.Find(peer.request), Finish::kPeerFailed, deltas);
  if (quiet) {
    PassPeer(peer);
  } else if (peer.writes && !peer.lost) {
    peer.lost = true;
    cache_.Lose(Gate::OfPeer(peer.id));
  }
  Close(peer);
}

void Scheduler::PassPeer(Peer& peer) {
  if (!std::exchange(peer.writes, false)) return;
  peer.lost = false;
  cache_.Pass(Gate::OfPeer(peer.id));
}

// ---- Both ------------------------------------------------------------------------------------

// The request ends before the hand-over is through.
void Scheduler::Part(Request& request) {
  if (request.peer == 0) return;
  Peer& peer = peers_.at(request.peer);
  peer.ended = true;
  OfferWord(peer);
}

// Forgets a hand-over of which nothing is left on either side.
void Scheduler::Close(const Peer& peer) {
  const PeerId id = peer.id;
  if (peer.ended && peer.parted && !peer.writes && peer.sends == 0) peers_.erase(id);
}

}  // namespace tokenspeed
