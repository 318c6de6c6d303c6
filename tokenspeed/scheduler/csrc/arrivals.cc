// Admissions whose blocks somebody else fills: the host tier, an image, a peer. And retraction to
// an image, which is the way back.
#include <algorithm>
#include <utility>

#include "check.h"
#include "scheduler.h"

namespace tokenspeed {

// Cached blocks that only the host has come into blocks that Occupy took for them.
void Scheduler::AdmitLoading(Request& request, Held held, StepBuilder& build) {
  Ticket ticket = NewTicket(Purpose::kLoad, Tier::kHost, Tier::kDevice);
  ticket.request = request.handle;
  for (const Found& found : cache_.found()) {
    if (!found.below) continue;
    const bool state = config_.groups[Index(found.group)].kind == CacheGroup::Kind::kState;
    const BlockId to = held.groups[Index(found.group)][Index(state ? 1 : found.column)].id();
    ticket.Add({found.group, state ? 0 : found.column, found.block, to},
               host_->cache.index().DigestOf(found.block));
    HoldUntil(cache_, to, Fence::AfterTicket(ticket.id));
    HoldUntil(host_->cache, found.block, Fence::AfterTicket(ticket.id));
  }
  counters_.host_blocks_loaded += ticket.moves.size();
  Apply(request.state, event::AdmitLoading{std::move(held), ticket.id}, trail_);
  Start(std::move(ticket), build);
}

// The image fills what the device did not have any more, from column `matched` on.
void Scheduler::AdmitRestoring(Request& request, Held held, std::int32_t matched,
                               StepBuilder& build) {
  Ticket ticket = NewTicket(Purpose::kImageIn, Tier::kHost, Tier::kDevice);
  ticket.request = request.handle;
  const Image& image = *std::get<Retracted>(request.state).image;
  for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
    const bool state = config_.groups[Index(g)].kind == CacheGroup::Kind::kState;
    const std::vector<BlockLease>& blocks = image.groups[Index(g)];
    for (std::size_t i = state ? 0 : Index(matched); i < blocks.size(); ++i) {
      if (blocks[i].id() == kNoBlock) continue;
      const auto column = static_cast<std::int32_t>(i);
      // What was whole and known then is known by its digest; so it may be shared afterwards.
      const bool whole = !state && (column + 1) * config_.block_size <= image.scheduled &&
                         i < request.digests.size();
      const BlockId to = held.groups[Index(g)][state ? 1 : i].id();
      ticket.Add({g, column, blocks[i].id(), to},
                 whole ? InGroup(request.digests[i], g) : Digest{});
      HoldUntil(cache_, to, Fence::AfterTicket(ticket.id));
      HoldUntil(host_->cache, blocks[i].id(), Fence::AfterTicket(ticket.id));
    }
  }
  held.scheduled = image.scheduled;
  held.published = image.scheduled / config_.block_size;
  held.cache_generation = image.cache_generation;
  Apply(request.state, event::AdmitRestoring{std::move(held), ticket.id}, trail_);
  Start(std::move(ticket), build);
}

// A peer fills everything from column `matched` on that the first decode reads.
void Scheduler::AdmitReceiving(Request& request, Held held, std::int32_t matched,
                               StepBuilder& build) {
  Peer& peer = peers_.at(request.peer);
  peer.writes = true;
  cache_.Open(Gate::OfPeer(peer.id));
  Ticket ticket = NewTicket(Purpose::kReceive, Tier::kPeer, Tier::kDevice);
  ticket.request = request.handle;
  ticket.peer = peer.id;
  ticket.prefix_len = matched * config_.block_size;
  ticket.prompt_len = request.prompt_len;
  for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
    const CacheGroup& group = config_.groups[Index(g)];
    const bool state = group.kind == CacheGroup::Kind::kState;
    const Columns columns = ColumnsFor(config_, group, ticket.prefix_len, request.prompt_len);
    for (std::int32_t column = columns.begin; column < columns.end; ++column) {
      const bool whole = !state && Index(column) < request.digests.size();
      const BlockId to = held.groups[Index(g)][Index(state ? 1 : column)].id();
      ticket.Add({g, column, kNoBlock, to},
                 whole ? InGroup(request.digests[Index(column)], g) : Digest{});
      HoldUntil(cache_, to, Fence::AfterPeer(peer.id));
    }
  }
  peer.moves = ticket.moves;
  peer.digests = ticket.digests;
  held.scheduled = request.prompt_len;
  held.published = request.prompt_len / config_.block_size;
  Apply(request.state, event::AdmitReceiving{std::move(held), peer.id}, trail_);
  Start(std::move(ticket), build);
}

// Everything is in its blocks. Whole blocks can be found by others from now on.
void Scheduler::Arrive(Request& request, const std::vector<Move>& moves,
                       const std::vector<Digest>& digests) {
  Apply(request.state, event::Arrived{}, trail_);
  const Held& held = *HeldOf(request.state);
  if (!cache_.enabled() || held.cache_generation != cache_.generation()) return;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    const bool state =
        config_.groups[Index(moves[i].group)].kind == CacheGroup::Kind::kState;
    if (state || digests[i] == Digest{}) continue;  // states are published by their next row
    cache_.Publish(moves[i].destination, digests[i]);
  }
}

// It gives up its slot and blocks, and computes what did not come.
void Scheduler::Miss(Request& request) {
  RemoveRunning(request);
  Apply(request.state, event::NotArrived{}, trail_);
  Requeue(request);
}

// ---- Images ----------------------------------------------------------------------------------

// Blocks of tokens, in order of columns, then the state that the latest row wrote.
template <typename Visit>
void Scheduler::ForImage(const Held& held, Visit visit) const {
  for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
    if (config_.groups[Index(g)].kind == CacheGroup::Kind::kState) {
      visit(g, 0, held.StateOf(Index(g)).id());
      continue;
    }
    const std::vector<BlockLease>& blocks = held.groups[Index(g)];
    for (std::int32_t column = 0; column < config_.BlocksFor(held.computed()); ++column) {
      visit(g, column, blocks[Index(column)].id());
    }
  }
}

// Where the host has a block already, the image shares it.
BlockId Scheduler::OnHost(const Request& request, const Held& held, std::int32_t group,
                          std::int32_t column) const {
  const bool state = config_.groups[Index(group)].kind == CacheGroup::Kind::kState;
  if (state || held.cache_generation != cache_.generation()) return kNoBlock;
  if (Index(column) >= request.digests.size()) return kNoBlock;
  return host_->cache.BlockOf(request.digests, column, Index(group));
}

bool Scheduler::FitsOnHost(const Request& request, const Held& held) const {
  if (host_ == nullptr || held.computed() < config_.block_size) return false;
  // A state behind drafts in flight is not known yet.
  if (num_state_groups_ > 0 && held.drafts_in_flight > 0) return false;
  std::int32_t needed = 0;
  ForImage(held, [&](std::int32_t g, std::int32_t column, BlockId block) {
    if (block == kNoBlock) return;
    const BlockId there = OnHost(request, held, g, column);
    // An idle block that the image shares is one less to be had.
    const bool held_there = there != kNoBlock &&
                            host_->cache.pool().place(there) != BlockPool::Place::kIdle;
    if (!held_there) ++needed;
  });
  return needed <= host_->cache.pool().available();
}

// The copy reads the blocks in the order of steps, before the rows of this one; so they are given
// up at once, and reused when this step is committed.
void Scheduler::StoreImage(Request& victim, StepBuilder& build) {
  Held& held = *HeldOf(victim.state);
  Ticket ticket = NewTicket(Purpose::kImageOut, Tier::kDevice, Tier::kHost);
  ticket.request = victim.handle;
  ticket.guard = Guard::kOrdered;
  auto image = std::make_unique<Image>();
  image->scheduled = held.computed();
  image->cache_generation = held.cache_generation;
  image->groups.resize(Index(config_.num_groups()));
  ForImage(held, [&](std::int32_t g, std::int32_t column, BlockId block) {
    std::vector<BlockLease>& blocks = image->groups[Index(g)];
    blocks.emplace_back();
    const BlockId there = block == kNoBlock ? kNoBlock : OnHost(victim, held, g, column);
    if (there != kNoBlock) blocks.back() = host_->cache.Share(there);
  });
  // First the shares, so that none of them makes room for the others.
  ForImage(held, [&](std::int32_t g, std::int32_t column, BlockId block) {
    BlockLease& target = image->groups[Index(g)][Index(column)];
    if (block == kNoBlock || target.id() != kNoBlock) return;
    target = host_->cache.Take();
    ticket.Add({g, column, block, target.id()}, Digest{});
    HoldUntil(host_->cache, target.id(), Fence::AfterTicket(ticket.id));
  });
  held.last_step = build.id();
  Apply(victim.state, event::WriteBack{std::move(image), ticket.id}, trail_);
  Start(std::move(ticket), build);
}

void Scheduler::EndImage(Request& request, const Ticket& ticket, bool whole) {
  const auto* writing = std::get_if<WritingBack>(&request.state);
  if (writing == nullptr || writing->ticket != ticket.id) return;
  if (whole) {
    ++counters_.images_stored;
    Apply(request.state, event::ImageStored{}, trail_);
  } else {
    Apply(request.state, event::ImageLost{}, trail_);
  }
  Requeue(request);
}

}  // namespace tokenspeed
