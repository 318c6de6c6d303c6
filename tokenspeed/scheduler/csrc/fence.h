// What was given up while a step, a transfer or a peer may still read or write it.
#ifndef TOKENSPEED_SCHEDULER_FENCE_H_
#define TOKENSPEED_SCHEDULER_FENCE_H_

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "ids.h"

namespace tokenspeed {

// When a resource may be used again: once everything named here has passed. A step passes when it
// is committed, a ticket when its transfer is acknowledged, a peer when it says that it is done.
struct Fence {
  StepId step = 0;
  TicketId ticket = 0;
  PeerId peer = 0;

  static Fence Now() { return {}; }
  static Fence AfterStep(StepId step) { return {.step = step}; }
  static Fence AfterTicket(TicketId ticket) { return {.ticket = ticket}; }
  static Fence AfterPeer(PeerId peer) { return {.peer = peer}; }
};

// Ids waiting for steps, in order of arrival per step. At most one bucket per step in flight,
// so that every operation is O(1) or O(what is released).
// Not thread-safe.
class FenceQueue {
 public:
  void Push(StepId step, std::int32_t id) { BucketOf(step).ids.push_back(id); }

  // Calls `release(id)` for everything waiting for a step up to `committed`, oldest step first.
  template <typename Release>
  void Settle(StepId committed, Release release) {
    std::size_t done = 0;
    while (done < buckets_.size() && buckets_[done].step <= committed) ++done;
    for (std::size_t i = 0; i < done; ++i) {
      for (const std::int32_t id : buckets_[i].ids) release(id);
    }
    buckets_.erase(buckets_.begin(), buckets_.begin() + static_cast<std::ptrdiff_t>(done));
  }

 private:
  struct Bucket {
    StepId step;
    std::vector<std::int32_t> ids;
  };

  Bucket& BucketOf(StepId step) {
    auto it = buckets_.begin();
    while (it != buckets_.end() && it->step < step) ++it;
    if (it == buckets_.end() || it->step != step) it = buckets_.insert(it, Bucket{step, {}});
    return *it;
  }

  std::vector<Bucket> buckets_;  // ascending by step
};

// A transfer or a peer that may still touch what was given up. Open from its beginning until it is
// known to be through; lost in between, when nobody can say.
struct Gate {
  enum class Kind : std::uint8_t { kTicket, kPeer };
  Kind kind = Kind::kTicket;
  std::uint64_t id = 0;
  friend auto operator<=>(const Gate&, const Gate&) = default;

  static Gate Of(TicketId ticket) { return {Kind::kTicket, ticket}; }
  static Gate OfPeer(PeerId peer) { return {Kind::kPeer, peer}; }
};

// What each of `num_ids` resources still waits for: the latest step of all its fences, and every
// gate of theirs. A fence on a committed step, or on a gate that is not open, is Now().
// Ids behind a lost gate are in quarantine: they wait until the gate passes after all, if ever.
// O(1), or O(what is released). Not thread-safe.
class Fences {
 public:
  explicit Fences(std::int32_t num_ids) : waits_(static_cast<std::size_t>(num_ids)) {}

  void Open(Gate gate);
  void Add(std::int32_t id, const Fence& fence);

  [[nodiscard]] bool Pending(std::int32_t id) const {
    const Waits& waits = waits_[Index(id)];
    return waits.step > committed_ || waits.gates > 0;
  }

  // The id has no holder left: `release` of Settle or Pass is called for it when nothing is
  // pending any more. REQUIRES: Pending(id).
  void Await(std::int32_t id) {
    if (waits_[Index(id)].step > committed_) steps_.Push(waits_[Index(id)].step, id);
  }

  // Calls `release(id)` for what may wait no longer; the caller asks Pending and whether anybody
  // holds it again.
  template <typename Release>
  void Settle(StepId committed, Release release) {
    committed_ = committed;
    steps_.Settle(committed, release);
  }

  // The gate is through, lost or not. REQUIRES: it is open.
  template <typename Release>
  void Pass(Gate gate, Release release) {
    const Behind behind = Close(gate);
    for (const std::int32_t id : behind.ids) release(id);
  }

  // Nobody can say whether the gate is through. REQUIRES: it is open.
  void Lose(Gate gate);

  [[nodiscard]] bool quarantined(std::int32_t id) const { return waits_[Index(id)].lost > 0; }
  [[nodiscard]] std::int32_t num_quarantined() const { return num_quarantined_; }

  // Counts equal recomputation. Throws Broken. O(all).
  void Audit() const;

 private:
  struct Waits {
    StepId step = 0;
    std::uint32_t gates = 0;
    std::uint32_t lost = 0;  // of `gates`
  };
  struct Behind {
    std::vector<std::int32_t> ids;  // once per fence
    bool lost = false;
  };

  static std::size_t Index(std::int32_t id) { return static_cast<std::size_t>(id); }
  void AddGate(std::int32_t id, Gate gate);
  Behind Close(Gate gate);
  void MarkLost(std::int32_t id);

  std::vector<Waits> waits_;
  FenceQueue steps_;
  std::map<Gate, Behind> gates_;
  StepId committed_ = 0;
  std::int32_t num_quarantined_ = 0;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_FENCE_H_
