#include "ticket.h"

#include <utility>

#include "check.h"

namespace tokenspeed {
namespace {

std::int32_t Size(const Ticket& ticket) { return static_cast<std::int32_t>(ticket.moves.size()); }

}  // namespace

Ticket& TicketBook::Add(Ticket ticket) {
  TS_CHECK(ticket.id == NextId(), "tickets are numbered in order");
  TS_CHECK(ticket.moves.size() == ticket.digests.size(), "a digest for every block");
  last_ = ticket.id;
  unarmed_.push_back(ticket.id);
  moving_[static_cast<std::size_t>(ticket.purpose)] += Size(ticket);
  return tickets_.emplace(ticket.id, std::move(ticket)).first->second;
}

Ticket* TicketBook::Find(TicketId id) {
  const auto at = tickets_.find(id);
  return at == tickets_.end() ? nullptr : &at->second;
}

const Ticket* TicketBook::Find(TicketId id) const {
  const auto at = tickets_.find(id);
  return at == tickets_.end() ? nullptr : &at->second;
}

void TicketBook::Erase(TicketId id) {
  const auto at = tickets_.find(id);
  TS_CHECK(at != tickets_.end(), "a ticket ends once");
  if (at->second.lost) {
    --num_lost_;
  } else {
    moving_[static_cast<std::size_t>(at->second.purpose)] -= Size(at->second);
  }
  tickets_.erase(at);
}

// What is lost takes no credit any more, or losses would stop all traffic one by one.
void TicketBook::MarkLost(Ticket& ticket) {
  TS_CHECK(!ticket.lost, "a ticket is lost once");
  ticket.lost = true;
  ++num_lost_;
  moving_[static_cast<std::size_t>(ticket.purpose)] -= Size(ticket);
}

std::vector<TicketId> TicketBook::Expire(double now, double timeout_s, StepId committed) {
  while (!unarmed_.empty()) {
    const Ticket* ticket = Find(unarmed_.front());
    if (ticket != nullptr && ticket->after > committed) break;
    if (ticket != nullptr) timers_.push_back({now + timeout_s, ticket->id});
    unarmed_.pop_front();
  }
  std::vector<TicketId> expired;
  while (!timers_.empty() && timers_.front().until <= now) {
    const Ticket* ticket = Find(timers_.front().id);
    if (ticket != nullptr && !ticket->lost) expired.push_back(ticket->id);
    timers_.pop_front();
  }
  return expired;
}

void TicketBook::Audit() const {
  std::int32_t lost = 0;
  std::int32_t moving[kPurposes] = {};
  for (const auto& [id, ticket] : tickets_) {
    lost += ticket.lost ? 1 : 0;
    if (!ticket.lost) moving[static_cast<std::size_t>(ticket.purpose)] += Size(ticket);
  }
  TS_CHECK(lost == num_lost_, "the lost count equals recomputation");
  for (std::size_t i = 0; i < kPurposes; ++i) {
    TS_CHECK(moving[i] == moving_[i], "the blocks on the move equal recomputation");
  }
}

}  // namespace tokenspeed
