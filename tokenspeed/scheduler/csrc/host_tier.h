// The host tier: a second prefix cache below the device's, and what waits to be copied.
#ifndef TOKENSPEED_SCHEDULER_HOST_TIER_H_
#define TOKENSPEED_SCHEDULER_HOST_TIER_H_

#include <cstdint>
#include <deque>

#include "absent.h"
#include "config.h"
#include "ids.h"
#include "prefix_cache.h"

namespace tokenspeed {

// A block whose contents are worth a copy one tier down.
struct PendingCopy {
  Digest digest;
  BlockId block = kNoBlock;
  std::int32_t group = 0;
  std::int32_t column = 0;
  StepId filled_by = 0;  // the copy waits until this step is committed
};

// Such copies in order, the oldest dropped when there are too many: a copy is never owed.
class PendingCopies {
 public:
  explicit PendingCopies(std::size_t most) : most_(most) {}

  void Push(const PendingCopy& copy) {
    if (queue_.size() == most_) queue_.pop_front();
    queue_.push_back(copy);
  }
  [[nodiscard]] bool Ready(StepId committed) const {
    return !queue_.empty() && queue_.front().filled_by <= committed;
  }
  PendingCopy Pop() {
    const PendingCopy first = queue_.front();
    queue_.pop_front();
    return first;
  }
  void Clear() { queue_.clear(); }

 private:
  const std::size_t most_;
  std::deque<PendingCopy> queue_;
};

// Stops at a level and starts again only at half of it, so that transfers go in runs.
class Hysteresis {
 public:
  explicit Hysteresis(std::int32_t high) : high_(high) {}

  // How much more may be begun while `level` is under way.
  std::int32_t Room(std::int32_t level) {
    if (level >= high_) open_ = false;
    if (level <= high_ / 2) open_ = true;
    return open_ ? high_ - level : 0;
  }

 private:
  const std::int32_t high_;
  bool open_ = true;
};

// Holds no decision: the scheduler starts the transfers, this is what they work on.
struct HostTier {
  explicit HostTier(const Config& config)
      : cache(HostConfig(config)),
        write_backs(static_cast<std::size_t>(config.num_host_blocks)),
        puts(static_cast<std::size_t>(config.num_host_blocks)),
        // Puts take half the credits at most: gets, which somebody waits for, have the others.
        put_gate(config.transfer_credits / 2),
        absent(config.absent_s) {}

  PrefixCache cache;       // over the host's blocks; known by the same digests as the device's
  PendingCopies write_backs;  // device blocks
  PendingCopies puts;         // host blocks
  Hysteresis put_gate;
  AbsentDigests absent;

 private:
  static Config HostConfig(Config config) {
    config.num_blocks = config.num_host_blocks;
    config.prefix_events = false;
    return config;
  }
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_HOST_TIER_H_
