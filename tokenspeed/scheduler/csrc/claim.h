// The blocks that an admission takes: on the real structures, and revocable until they are kept.
#ifndef TOKENSPEED_SCHEDULER_CLAIM_H_
#define TOKENSPEED_SCHEDULER_CLAIM_H_

#include <cstdint>
#include <vector>

#include "block_pool.h"
#include "ids.h"
#include "prefix_cache.h"

namespace tokenspeed {

// Shares and takes blocks one by one and writes down how each of them is undone. What is planned is
// what is committed: there is no figure beside the structures that could differ from them. Without
// `Keep` everything is undone, last first, and is exactly as it was: places, order of eviction, the
// index, events and memos. Undone within the call that made it. O(blocks).
class Claim {
 public:
  // A block, and where it goes.
  struct Entry {
    std::int32_t group = 0;
    std::int32_t column = 0;
    bool tail = false;  // the block is only to be copied
    BlockLease lease;
    PrefixCache::Undo undo;
  };

  explicit Claim(PrefixCache& cache) : cache_(cache) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim();

  // A share in a cached block.
  void Share(const Found& found, std::int32_t column);

  // A block for new contents; false where there is none.
  [[nodiscard]] bool Take(std::int32_t group, std::int32_t column);

  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

  // It stands. The entries, in the order in which they were claimed, are the caller's.
  std::vector<Entry> Keep() &&;

 private:
  PrefixCache& cache_;
  std::vector<Entry> entries_;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_CLAIM_H_
