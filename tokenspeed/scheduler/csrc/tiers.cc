// Copies of published blocks one tier down, and back up from disk and remote into the host tier.
#include <algorithm>
#include <utility>

#include "check.h"
#include "scheduler.h"

namespace tokenspeed {

// Every publication on the device goes through here.
void Scheduler::Offer(BlockId block, const Digest& digest, std::int32_t group,
                      std::int32_t column, StepId filled_by) {
  if (!cache_.Publish(block, digest)) return;
  // A decode engine streams nothing: its prompts are the prefill engines' to keep.
  if (host_ == nullptr || config_.role == Role::kDecode) return;
  host_->write_backs.Push({.digest = digest,
                           .block = block,
                           .group = group,
                           .column = column,
                           .filled_by = filled_by});
}

// Only what steps have computed for certain, so that a copy never waits for one.
void Scheduler::StartWriteBacks(StepBuilder& build) {
  std::int32_t room = config_.transfer_credits - tickets_.moving(Purpose::kWriteBack);
  if (room <= 0 || !host_->write_backs.Ready(committed_)) return;
  Ticket ticket = NewTicket(Purpose::kWriteBack, Tier::kDevice, Tier::kHost);
  while (room > 0 && host_->write_backs.Ready(committed_)) {
    const PendingCopy copy = host_->write_backs.Pop();
    const bool wanted = cache_.Holds(copy.block, copy.digest) &&
                        host_->cache.index().Find(copy.digest) == kNoBlock;
    if (!wanted || host_->cache.pool().available() == 0) continue;
    ticket.targets.push_back(host_->cache.Take());
    ticket.Add({copy.group, copy.column, copy.block, ticket.targets.back().id()}, copy.digest);
    HoldUntil(cache_, copy.block, Fence::AfterTicket(ticket.id));
    --room;
  }
  if (ticket.moves.empty()) return DropTicket(ticket);
  Start(std::move(ticket), build);
}

void Scheduler::StartPuts(StepBuilder& build) {
  if (!config_.disk && !config_.remote) return;
  const std::int32_t stores = (config_.disk ? 1 : 0) + (config_.remote ? 1 : 0);
  std::int32_t room = host_->put_gate.Room(tickets_.moving(Purpose::kPut)) / stores;
  std::vector<PendingCopy> copies;
  while (room > 0 && host_->puts.Ready(committed_)) {
    const PendingCopy copy = host_->puts.Pop();
    if (!host_->cache.Holds(copy.block, copy.digest)) continue;
    copies.push_back(copy);
    --room;
  }
  if (copies.empty()) return;
  for (const Tier store : {Tier::kDisk, Tier::kRemote}) {
    if (store == Tier::kDisk ? !config_.disk : !config_.remote) continue;
    Ticket ticket = NewTicket(Purpose::kPut, Tier::kHost, store);
    for (const PendingCopy& copy : copies) {
      ticket.Add({copy.group, copy.column, copy.block, kNoBlock}, copy.digest);
      HoldUntil(host_->cache, copy.block, Fence::AfterTicket(ticket.id));
    }
    Start(std::move(ticket), build);
  }
}

// The host blocks that a write-back or a get has filled can be found from now on.
void Scheduler::KeepOnHost(Ticket& ticket, std::span<const std::uint8_t> results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i] == 0 || ticket.generation != cache_.generation()) continue;
    const BlockId block = ticket.targets[i].id();
    const bool known = host_->cache.Publish(block, ticket.digests[i]);
    if (!known || ticket.purpose != Purpose::kWriteBack || !(config_.disk || config_.remote)) {
      continue;
    }
    host_->puts.Push({.digest = ticket.digests[i],
                      .block = block,
                      .group = ticket.moves[i].group,
                      .column = ticket.moves[i].column});
  }
}

// ---- Disk and remote -------------------------------------------------------------------------

// The digests of the blocks that a request may find: at least its last token is computed.
std::span<const Digest> Scheduler::Findable(const Request& request) const {
  if (!request.read_prefix_cache) return {};
  const std::span<const Digest> digests(request.digests);
  return digests.first(std::min(Index((request.known() - 1) / config_.block_size), digests.size()));
}

// Whoever waits asks once for what device and host lack. While it does, others may go first; it
// comes back to its own place.
void Scheduler::StartLookups(StepBuilder& build) {
  for (; !lookups_.empty(); lookups_.pop_front()) {
    Request* request = requests_.Find(lookups_.front());
    if (request == nullptr || !waiting_.Contains(*request)) continue;
    const std::span<const Digest> digests = Findable(*request);
    const auto whole = static_cast<std::int32_t>(digests.size());
    const std::int32_t depth = cache_.Depth(digests, true);
    if (depth == whole) continue;
    if (host_->absent.Contains(digests[Index(depth)], last_now_)) continue;
    const std::int32_t room = config_.transfer_credits - tickets_.moving(Purpose::kQuery) -
                              tickets_.moving(Purpose::kGet);
    const std::int32_t columns =
        room / (config_.num_groups() * ((config_.disk ? 1 : 0) + (config_.remote ? 1 : 0)));
    if (columns <= 0) return;
    // Other groups than one full one may lack blocks before the depth too.
    const std::int32_t begin = config_.num_groups() == 1 ? depth : 0;
    Ask(*request, begin, std::min(whole, begin + columns), build);
  }
}

void Scheduler::Ask(Request& request, std::int32_t begin, std::int32_t end, StepBuilder& build) {
  auto lookup = std::make_unique<Lookup>();
  lookup->begin = begin;
  lookup->has.assign(Index((end - begin) * config_.num_groups()), Tier::kNone);
  for (const Tier store : {Tier::kDisk, Tier::kRemote}) {
    if (store == Tier::kDisk ? !config_.disk : !config_.remote) continue;
    Ticket ticket = NewTicket(Purpose::kQuery, store, Tier::kNone);
    ticket.request = request.handle;
    for (std::int32_t column = begin; column < end; ++column) {
      for (std::int32_t g = 0; g < config_.num_groups(); ++g) {
        ticket.Add({g, column, kNoBlock, kNoBlock}, InGroup(request.digests[Index(column)], g));
      }
    }
    ++lookup->questions;
    Start(std::move(ticket), build);
  }
  waiting_.Remove(request, last_now_);
  // One more than the questions: the gets that follow from the answers.
  Apply(request.state, event::Fetch{lookup->questions + 1}, trail_);
  request.lookup = std::move(lookup);
}

void Scheduler::NoteAnswer(Request& request, const Ticket& ticket,
                           std::span<const std::uint8_t> results) {
  Lookup& lookup = *request.lookup;
  for (std::size_t i = 0; i < results.size(); ++i) {
    Tier& has = lookup.has[i];
    if (results[i] != 0 && has != Tier::kDisk) has = ticket.source;
  }
  Apply(request.state, event::Fetched{}, trail_);
  if (--lookup.questions == 0) gets_.push_back(request.handle);
}

void Scheduler::StartGets(StepBuilder& build) {
  for (; !gets_.empty(); gets_.pop_front()) {
    Request* request = requests_.Find(gets_.front());
    if (request == nullptr) continue;
    const std::int32_t tickets = Get(*request, build);
    request->lookup.reset();
    Apply(request->state, event::Fetched{tickets}, trail_);
    if (std::holds_alternative<Waiting>(request->state)) waiting_.Push(*request, last_now_);
  }
}

// Brings what disk and remote said they have into host blocks, as far as it makes the prefix
// longer. Returns the number of transfers.
std::int32_t Scheduler::Get(const Request& request, StepBuilder& build) {
  const Lookup& lookup = *request.lookup;
  const std::span<const Digest> digests = Findable(request);
  const std::int32_t groups = config_.num_groups();
  const auto said = [&](std::int32_t column, std::size_t g) {
    const std::int32_t at = (column - lookup.begin) * groups + static_cast<std::int32_t>(g);
    return at < 0 || Index(at) >= lookup.has.size() ? Tier::kNone : lookup.has[Index(at)];
  };
  const auto here = [&](std::int32_t column, std::size_t g) {
    return cache_.BlockOf(digests, column, g) != kNoBlock ||
           host_->cache.BlockOf(digests, column, g) != kNoBlock;
  };
  const auto whole = static_cast<std::int32_t>(digests.size());
  const std::int32_t now = cache_.DepthWhere(whole, here);
  const std::int32_t then = cache_.DepthWhere(whole, [&](std::int32_t column, std::size_t g) {
    return here(column, g) || said(column, g) != Tier::kNone;
  });
  if (then < whole) host_->absent.Note(digests[Index(then)], last_now_);
  if (then == now) return 0;
  // What the host has of this prefix must not make room for the rest of it.
  std::vector<BlockLease> kept;
  std::vector<std::pair<Move, Tier>> wanted;
  for (std::int32_t g = 0; g < groups; ++g) {
    const std::int32_t first = cache_.FirstNeeded(config_.groups[Index(g)], then);
    for (std::int32_t column = first; column < then; ++column) {
      const BlockId on_host = host_->cache.BlockOf(digests, column, Index(g));
      if (on_host != kNoBlock) kept.push_back(host_->cache.Share(on_host));
      if (!here(column, Index(g))) wanted.push_back({{g, column}, said(column, Index(g))});
    }
  }
  std::int32_t tickets = 0;
  if (static_cast<std::int32_t>(wanted.size()) <= host_->cache.pool().available()) {
    for (const Tier store : {Tier::kDisk, Tier::kRemote}) {
      Ticket ticket = NewTicket(Purpose::kGet, store, Tier::kHost);
      ticket.request = request.handle;
      for (auto [move, has] : wanted) {
        if (has != store) continue;
        ticket.targets.push_back(host_->cache.Take());
        move.destination = ticket.targets.back().id();
        ticket.Add(move, InGroup(digests[Index(move.column)], move.group));
      }
      if (ticket.moves.empty()) {
        DropTicket(ticket);
        continue;
      }
      ++tickets;
      Start(std::move(ticket), build);
    }
  }
  for (; !kept.empty(); kept.pop_back()) std::move(kept.back()).Retire(Fence::Now());
  return tickets;
}

void Scheduler::GotOne(Request& request) {
  Apply(request.state, event::Fetched{}, trail_);
  if (std::holds_alternative<Waiting>(request.state)) waiting_.Push(request, last_now_);
}

}  // namespace tokenspeed
