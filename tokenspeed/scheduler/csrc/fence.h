// What was given up while a step that reads or writes it may still run.
#ifndef TOKENSPEED_SCHEDULER_FENCE_H_
#define TOKENSPEED_SCHEDULER_FENCE_H_

#include <cstdint>
#include <vector>

#include "ids.h"

namespace tokenspeed {

// When a resource may be used again: now, or once a step is committed. A fence on a committed
// step is the same as Now().
struct Fence {
  StepId step = 0;
  static Fence Now() { return {0}; }
  static Fence AfterStep(StepId step) { return {step}; }
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

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_FENCE_H_
