// Who waits to be admitted, in order of rank, and until when.
#ifndef TOKENSPEED_SCHEDULER_WAIT_QUEUE_H_
#define TOKENSPEED_SCHEDULER_WAIT_QUEUE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "request.h"

namespace tokenspeed {

// A request's timer runs exactly while it is in here. O(log of who waits) per operation.
// Not thread-safe. Owns no request.
class WaitQueue {
 public:
  // REQUIRES: the request is not in the queue.
  void Push(Request& request, double now) {
    request.queued_s = now;
    by_rank_.emplace(request.rank, &request);
    if (std::isfinite(request.wait_left_s)) by_end_.emplace(EndOf(request), &request);
  }

  // The request waits no longer. Whoever is not in the queue stays as it is.
  void Remove(Request& request, double now) {
    if (by_rank_.erase(request.rank) == 0) return;
    by_end_.erase(EndOf(request));
    request.wait_left_s -= now - request.queued_s;
  }

  // The first in rank, nullptr when nobody waits.
  [[nodiscard]] Request* first() const {
    return by_rank_.empty() ? nullptr : by_rank_.begin()->second;
  }

  // Somebody who has waited for as long as it may, the longest overdue first; else nullptr.
  [[nodiscard]] Request* Overdue(double now) const {
    if (by_end_.empty() || by_end_.begin()->first.first > now) return nullptr;
    return by_end_.begin()->second;
  }

  [[nodiscard]] bool Contains(const Request& request) const {
    const auto at = by_rank_.find(request.rank);
    return at != by_rank_.end() && at->second == &request;
  }
  [[nodiscard]] std::size_t size() const { return by_rank_.size(); }
  // Of these, who may not wait for ever. For audits.
  [[nodiscard]] std::size_t num_timed() const { return by_end_.size(); }

 private:
  using End = std::pair<double, std::uint64_t>;  // seconds, arrival
  static End EndOf(const Request& request) {
    return {request.queued_s + request.wait_left_s, request.rank.arrival};
  }

  std::map<Rank, Request*> by_rank_;
  std::map<End, Request*> by_end_;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_WAIT_QUEUE_H_
