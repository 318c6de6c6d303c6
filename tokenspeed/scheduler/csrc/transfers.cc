// Tickets: how transfers begin, what is reported of them, what follows.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "check.h"
#include "scheduler.h"

namespace tokenspeed {
namespace {

// Whether the request waits for this transfer to fill its blocks.
bool Awaits(const Request& request, TicketId ticket) {
  return IsFilled(request.state) && TicketOf(request.state) == ticket;
}

}  // namespace

// ---- How they begin --------------------------------------------------------------------------

// Its gates are open from here on, so that blocks can be held until then.
// REQUIRES: the ticket before it was started.
Ticket Scheduler::NewTicket(Purpose purpose, Tier source, Tier destination) {
  Ticket ticket{.id = tickets_.NextId(),
                .purpose = purpose,
                .source = source,
                .destination = destination,
                .generation = cache_.generation()};
  cache_.Open(Gate::Of(ticket.id));
  if (host_ != nullptr) host_->cache.Open(Gate::Of(ticket.id));
  return ticket;
}

void Scheduler::Start(Ticket ticket, StepBuilder& build) {
  const bool to_or_from_peer = ticket.source == Tier::kPeer || ticket.destination == Tier::kPeer;
  build.AddTransfer(ticket, to_or_from_peer ? config_.layers_per_transfer : 0);
  tickets_.Add(std::move(ticket));
}

// It moves nothing after all.
void Scheduler::DropTicket(const Ticket& ticket) { PassGate(Gate::Of(ticket.id)); }

// Whoever touches the block besides its holders keeps it by a share that is given up behind it.
void Scheduler::HoldUntil(PrefixCache& cache, BlockId block, const Fence& fence) {
  cache.Share(block).Retire(fence);
}

// What nobody waits for.
void Scheduler::StartTransfers(StepBuilder& build) {
  if (host_ == nullptr) return;
  StartWriteBacks(build);
  StartPuts(build);
}

void Scheduler::ExpireTransfers(double now) {
  for (const TicketId id : tickets_.Expire(now, config_.transfer_timeout_s, committed_)) {
    if (Ticket* ticket = tickets_.Find(id); ticket != nullptr && !ticket->lost) {
      Lose(*ticket, ended_);
    }
  }
  ExpirePeers(now);
}

// ---- What is reported ------------------------------------------------------------------------

Deltas Scheduler::ApplyReports(std::span<const Report> reports, double now) {
  Require(std::isfinite(now), "now must be finite seconds");
  std::set<std::pair<bool, std::uint64_t>> seen;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const auto about = std::visit(
        [](const auto& report) -> std::pair<bool, std::uint64_t> {
          if constexpr (requires { report.ticket; }) {
            return {false, report.ticket};
          } else {
            return {true, report.peer};
          }
        },
        reports[i]);
    std::string objection = Objection(reports[i]);
    if (!seen.insert(about).second) objection = "is reported twice in one batch";
    Require(objection.empty(), "report " + std::to_string(i) + ": " +
                                   (about.first ? "peer " : "ticket ") +
                                   std::to_string(about.second) + " " + objection);
  }
  last_now_ = now;
  Deltas deltas;
  for (const Report& report : reports) {
    std::visit([&](const auto& one) { Take(one, deltas); }, report);
  }
  return deltas;
}

// Why the report cannot be; empty when it can.
std::string Scheduler::Objection(const Report& report) const {
  const auto find = [this](TicketId id) { return tickets_.Find(id); };
  if (const auto* done = std::get_if<report::TransferDone>(&report)) {
    const Ticket* ticket = find(done->ticket);
    if (ticket == nullptr) return "is not in flight";
    if (done->results.size() != ticket->moves.size()) {
      return "moves " + std::to_string(ticket->moves.size()) + " blocks and has " +
             std::to_string(done->results.size()) + " results";
    }
    const bool plain = std::all_of(done->results.begin(), done->results.end(),
                                   [](std::uint8_t result) { return result <= 1; });
    return plain ? "" : "has a result that is neither 0 nor 1";
  }
  if (const auto* lost = std::get_if<report::TransferLost>(&report)) {
    const Ticket* ticket = find(lost->ticket);
    if (ticket == nullptr) return "is not in flight";
    return ticket->lost ? "is lost already" : "";
  }
  if (const auto* ready = std::get_if<report::PeerReady>(&report)) return MisfitOf(*ready);
  if (const auto* delivered = std::get_if<report::PeerDelivered>(&report)) {
    if (delivered->token < 0) return "hands over a token that is negative";
    const Peer* peer = FindIn(peers_, delivered->peer);
    if (peer == nullptr || peer->ended) return "";
    return peer->writes ? "" : "delivers before it was told where";
  }
  return "";
}

void Scheduler::Take(const report::TransferDone& done, Deltas& deltas) {
  Ticket& ticket = *tickets_.Find(done.ticket);
  if (!ticket.lost) {
    const bool whole = std::count(done.results.begin(), done.results.end(), 0) == 0;
    if (!whole && ticket.purpose != Purpose::kQuery) ++counters_.transfers_failed;
    Follow(ticket, done.results, deltas);
  } else if (ticket.purpose == Purpose::kSend) {
    Sent(ticket, false, false, deltas);  // found: it reads nothing any more
  }
  for (; !ticket.targets.empty(); ticket.targets.pop_back()) {
    std::move(ticket.targets.back()).Retire(Fence::Now());
  }
  PassGate(Gate::Of(done.ticket));
  tickets_.Erase(done.ticket);
}

void Scheduler::Take(const report::TransferLost& lost, Deltas& deltas) {
  Lose(*tickets_.Find(lost.ticket), deltas);
}

void Scheduler::PassGate(Gate gate) {
  cache_.Pass(gate);
  if (host_ != nullptr && gate.kind == Gate::Kind::kTicket) host_->cache.Pass(gate);
}

// ---- What follows ----------------------------------------------------------------------------

// Whoever waits for it goes on as if it had failed; its blocks stay behind its gate.
void Scheduler::Lose(Ticket& ticket, Deltas& deltas) {
  tickets_.MarkLost(ticket);
  for (; !ticket.targets.empty(); ticket.targets.pop_back()) {
    std::move(ticket.targets.back()).Retire(Fence::AfterTicket(ticket.id));
  }
  switch (ticket.purpose) {
    case Purpose::kSend: Sent(ticket, false, true, deltas); break;
    case Purpose::kReceive: Told(ticket, false, true, deltas); break;
    default: {
      const std::vector<std::uint8_t> nothing(ticket.moves.size(), 0);
      Follow(ticket, nothing, deltas);
    }
  }
  cache_.Lose(Gate::Of(ticket.id));
  if (host_ != nullptr) host_->cache.Lose(Gate::Of(ticket.id));
}

void Scheduler::Follow(Ticket& ticket, std::span<const std::uint8_t> results, Deltas& deltas) {
  const bool whole = std::count(results.begin(), results.end(), 0) == 0;
  Request* request = requests_.Find(ticket.request);
  switch (ticket.purpose) {
    case Purpose::kWriteBack: return KeepOnHost(ticket, results);
    case Purpose::kPut:
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (results[i] != 0) host_->absent.Forget(ticket.digests[i]);
      }
      return;
    case Purpose::kGet:
      KeepOnHost(ticket, results);
      if (request != nullptr) GotOne(*request);
      return;
    case Purpose::kQuery:
      if (request != nullptr) NoteAnswer(*request, ticket, results);
      return;
    case Purpose::kLoad:
    case Purpose::kImageIn: {
      // It may have been preempted meanwhile, and even be admitted again: by another ticket.
      if (request == nullptr || !Awaits(*request, ticket.id)) return;
      if (whole) {
        if (ticket.purpose == Purpose::kImageIn) ++counters_.images_restored;
        Arrive(*request, ticket.moves, ticket.digests);
      } else {
        request->read_host = request->read_host && ticket.purpose == Purpose::kImageIn;
        Miss(*request);
      }
      return;
    }
    case Purpose::kImageOut:
      if (request != nullptr) EndImage(*request, ticket, whole);
      return;
    case Purpose::kSend: return Sent(ticket, whole, false, deltas);
    case Purpose::kReceive: return Told(ticket, whole, false, deltas);
    case Purpose::kWord: return Said(ticket, deltas);
  }
}

}  // namespace tokenspeed
