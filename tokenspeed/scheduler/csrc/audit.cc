// The full audit behind `check()`: everything is recomputed, nothing is trusted.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "check.h"
#include "scheduler.h"

namespace tokenspeed {

void Scheduler::Audit() const {
  cache_.Audit();
  AuditRequests();
  AuditShares();
  AuditTiers();
  TS_CHECK(static_cast<std::int32_t>(in_flight_.size()) <= config_.in_flight_depth + 1,
           "no more steps are in flight than the depth allows");
  StepId expected = committed_;
  for (const InFlight& flight : in_flight_) {
    TS_CHECK(flight.step->id == ++expected, "steps in flight are consecutive");
  }
  TS_CHECK(expected == last_step_, "every step is committed or in flight");
  TS_CHECK(cache_.pool().available() + cache_.pool().num_fenced() + num_pinned_ >= Promised(),
           "what was promised is there");
}

// Shares per block, slots and rows, from what running requests hold.
void Scheduler::AuditShares() const {
  const BlockPool& pool = cache_.pool();
  std::vector<std::int32_t> shares(Index(pool.usable() + 1), 0);
  std::vector<std::int32_t> writers(shares.size(), 0);
  std::vector<int> slots(Index(tables_.num_slots()), 0);
  for (const Request* request : running_) {
    const Held* held = HeldOf(request->state);
    TS_CHECK(held != nullptr, "whoever runs holds a slot");
    TS_CHECK(++slots[Index(held->slot.id())] == 1, "a slot has one owner");
    TS_CHECK(held->groups.size() == config_.groups.size(), "a request holds of every group");
    for (std::size_t g = 0; g < held->groups.size(); ++g) {
      const std::vector<BlockLease>& blocks = held->groups[g];
      const auto row = tables_.Row(held->slot.id(), static_cast<std::int32_t>(g));
      const bool state = config_.groups[g].kind == CacheGroup::Kind::kState;
      TS_CHECK(Index(state ? 2 : held->columns) == blocks.size(), "columns count the blocks");
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const BlockId block = blocks[i].id();
        if (block == kNoBlock) {
          TS_CHECK(row[i] == kNullBlock || (state && i == 0 && row[0] == row[1]),
                   "a hole is the null block, or a state that is read where it is written");
          continue;
        }
        TS_CHECK(row[i] == block, "a row lists the blocks its request holds");
        ++shares[Index(block)];
        const bool open = state ? i == 1 && !pool.kept(block)
                                : static_cast<std::int64_t>(i + 1) * config_.block_size >
                                      held->computed();
        writers[Index(block)] += open ? 1 : 0;
      }
      for (std::size_t i = blocks.size(); i < row.size(); ++i) {
        TS_CHECK(row[i] == kNullBlock, "unused entries are the null block");
      }
      AuditWindow(*held, g);
    }
  }
  std::int32_t pinned = 0;
  for (const auto& [until, blocks] : pins_) {
    for (const BlockLease& block : blocks) {
      ++shares[Index(block.id())];
      ++pinned;
    }
  }
  TS_CHECK(pinned == num_pinned_, "the pinned count equals recomputation");
  for (BlockId block = 1; block <= pool.usable(); ++block) {
    TS_CHECK(shares[Index(block)] == pool.shares(block), "shares equal the leases that exist");
    TS_CHECK(writers[Index(block)] == 0 || (shares[Index(block)] == 1 && !pool.kept(block)),
             "a block still to be written has one holder and is not in the index");
  }
}

// A full group has no holes; a window group has them only before what the next query reads.
void Scheduler::AuditWindow(const Held& held, std::size_t group) const {
  const CacheGroup& kind = config_.groups[group];
  if (kind.kind == CacheGroup::Kind::kState) return;
  const std::int32_t reads = kind.kind == CacheGroup::Kind::kFull
                                 ? 0
                                 : std::max(0, held.computed() - kind.window + 1);
  for (std::int32_t i = 0; i < held.columns; ++i) {
    TS_CHECK(held.groups[group][Index(i)].id() != kNoBlock ||
                 (i + 1) * config_.block_size <= reads,
             "what the next query reads is held");
  }
}

void Scheduler::AuditRequests() const {
  std::size_t live = 0;
  std::size_t owners = 0;
  std::size_t queued = 0;
  std::size_t timed = 0;
  std::int32_t finishing = 0;
  requests_.ForEach([&](const Request& request) {
    ++live;
    TS_CHECK(requests_.Find(request.id) == &request && requests_.Find(request.handle) == &request,
             "a live request is found by id and by handle");
    if (const Held* held = HeldOf(request.state)) {
      ++owners;
      AuditHeld(request, *held);
    } else {
      const auto* retracted = std::get_if<Retracted>(&request.state);
      const bool expected = std::holds_alternative<Waiting>(request.state) ||
                            (retracted != nullptr && retracted->samples_in_flight == 0);
      TS_CHECK(waiting_.Contains(request) == expected,
               "a request without a slot queues, unless it waits for somebody else");
      TS_CHECK(request.lookup == nullptr || std::holds_alternative<Fetching>(request.state),
               "only who fetches has asked");
      queued += expected ? 1 : 0;
      timed += expected && std::isfinite(request.wait_left_s) ? 1 : 0;
    }
    finishing += IsLeaving(request.state) ? 1 : 0;
  });
  TS_CHECK(live == requests_.size(), "every live request has an id");
  TS_CHECK(owners == running_.size(), "the running list holds the owners of slots");
  TS_CHECK(queued == waiting_.size(), "the queue holds live requests only");
  TS_CHECK(timed == waiting_.num_timed(), "exactly the timers of who waits run");
  TS_CHECK(finishing == num_finishing_, "the finishing count equals recomputation");
  for (std::size_t i = 1; i < running_.size(); ++i) {
    TS_CHECK(running_[i - 1]->rank < running_[i]->rank, "the running list is in order");
  }
}

void Scheduler::AuditHeld(const Request& request, const Held& held) const {
  const std::int32_t total = request.known() + held.samples_in_flight + held.drafts_in_flight;
  TS_CHECK(held.drafts_in_flight >= 0 && (held.samples_in_flight > 0 || held.drafts_in_flight == 0),
           "drafts come with a sample");
  TS_CHECK(held.published * config_.block_size <= std::min(held.computed(), request.known()),
           "no draft is published");
  TS_CHECK(held.samples_in_flight <= static_cast<std::int32_t>(in_flight_.size()),
           "a step brings at most one result per request");
  TS_CHECK(held.last_step <= last_step_, "no row is of a step to come");
  TS_CHECK(config_.BlocksFor(held.scheduled) <= held.columns,
           "what is scheduled has a block to go to");
  if (IsFilled(request.state)) {
    TS_CHECK(held.last_step == 0 && held.samples_in_flight == 0, "who is filled has no row yet");
    const bool whole_prompt = std::holds_alternative<Receiving>(request.state);
    TS_CHECK(held.scheduled < total || (whole_prompt && held.scheduled == total),
             "something is left to compute");
  } else if (std::holds_alternative<Prefilling>(request.state)) {
    TS_CHECK(held.scheduled < total && held.samples_in_flight == 0, "prefilling means unfinished");
  } else if (std::holds_alternative<Decoding>(request.state)) {
    TS_CHECK(held.scheduled < total && (held.samples_in_flight == 0 || held.scheduled == total - 1),
             "decoding means one token to compute, or several that are known");
    TS_CHECK(request.generated() + held.samples_in_flight < request.max_tokens,
             "whoever decodes may still generate");
    TS_CHECK(total - request.prompt_len <= request.max_tokens, "and no more than it may");
  } else if (std::holds_alternative<PrefillDone>(request.state)) {
    TS_CHECK(held.scheduled == request.prompt_len && total == request.prompt_len + 1,
             "the prompt is computed, one token is sampled");
  } else {
    TS_CHECK(request.generated() + held.samples_in_flight == request.max_tokens,
             "finishing means that nothing is left to schedule");
    TS_CHECK(held.last_step > committed_, "finishing requests have results in flight");
  }
  if (!cache_.enabled()) return;
  Digest parent = request.root;
  const auto block_size = Index(config_.block_size);
  TS_CHECK(request.digests.size() == request.tokens.size() / block_size,
           "digests cover the full blocks of known tokens");
  for (std::size_t i = 0; i < request.digests.size(); ++i) {
    parent = BlockDigest(config_.digest_key, parent,
                         std::span(request.tokens).subspan(i * block_size, block_size));
    TS_CHECK(parent == request.digests[i], "digests are those of the tokens");
    if (i >= Index(held.columns)) continue;
    for (std::size_t g = 0; g < held.groups.size(); ++g) {
      if (config_.groups[g].kind == CacheGroup::Kind::kState) continue;
      const BlockId block = held.groups[g][i].id();
      if (block == kNoBlock || !cache_.index().Contains(block)) continue;
      TS_CHECK(cache_.index().DigestOf(block) == InGroup(parent, static_cast<std::int32_t>(g)),
               "an indexed block is known by the tokens it holds");
    }
  }
}

// What transfers write has one holder and is found by nobody; host shares and hand-overs add up.
void Scheduler::AuditTiers() const {
  tickets_.Audit();
  requests_.ForEach([this](const Request& request) {
    if (!IsFilled(request.state)) return;
    tickets_.ForEach([&](const Ticket& ticket) {
      if (ticket.lost || ticket.destination != Tier::kDevice) return;
      if (!(ticket.request == request.handle) || TicketOf(request.state) != ticket.id) return;
      for (const Move& move : ticket.moves) {
        TS_CHECK(cache_.pool().shares(move.destination) == 1 &&
                     !cache_.pool().kept(move.destination),
                 "a block that a transfer fills has one holder and is not in the index");
      }
    });
  });
  for (const auto& [id, peer] : peers_) {
    const Request* request = requests_.Find(peer.request);
    TS_CHECK(peer.ended == (request == nullptr || request->peer == 0),
             "a hand-over is open as long as its request");
    TS_CHECK(peer.ended || request->peer == id, "a request is part of its own hand-over");
  }
  if (host_ == nullptr) return;
  host_->cache.Audit();
  const BlockPool& pool = host_->cache.pool();
  std::vector<std::int32_t> shares(Index(pool.usable() + 1), 0);
  tickets_.ForEach([&](const Ticket& ticket) {
    for (const BlockLease& target : ticket.targets) ++shares[Index(target.id())];
  });
  requests_.ForEach([&](const Request& request) {
    const Image* image = ImageOf(request.state);
    if (image == nullptr) return;
    for (const std::vector<BlockLease>& blocks : image->groups) {
      for (const BlockLease& block : blocks) {
        if (block.id() != kNoBlock) ++shares[Index(block.id())];
      }
    }
  });
  for (BlockId block = 1; block <= pool.usable(); ++block) {
    TS_CHECK(shares[Index(block)] == pool.shares(block),
             "shares in host blocks equal the leases that exist");
  }
}

}  // namespace tokenspeed
