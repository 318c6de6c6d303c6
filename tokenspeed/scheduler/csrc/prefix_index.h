// From prefix digest to the block that holds it.
#ifndef TOKENSPEED_SCHEDULER_PREFIX_INDEX_H_
#define TOKENSPEED_SCHEDULER_PREFIX_INDEX_H_

#include <cstdint>
#include <vector>

#include "digest.h"
#include "ids.h"

namespace tokenspeed {

// One entry per block at most, one block per digest. Open addressing with linear probing at a
// load of at most one half, deletion by backward shift: no tombstones, so the cost of a look-up
// does not grow with the age of the index. Fixed memory; no operation allocates.
// Iteration order never leaves this class, so no decision can depend on it.
// Not thread-safe.
class PrefixIndex {
 public:
  // For block ids in [0, num_blocks).
  explicit PrefixIndex(std::int32_t num_blocks);

  // kNoBlock when absent. O(1).
  [[nodiscard]] BlockId Find(const Digest& digest) const;

  // REQUIRES: neither the digest nor the block is in the index.
  void Insert(const Digest& digest, BlockId block);

  // REQUIRES: the block is in the index.
  void Erase(BlockId block);

  [[nodiscard]] bool Contains(BlockId block) const { return present_[Index(block)]; }
  // REQUIRES: Contains(block).
  [[nodiscard]] const Digest& DigestOf(BlockId block) const { return digests_[Index(block)]; }
  [[nodiscard]] std::int32_t size() const { return size_; }

  // Every entry is found under its digest, and the count is right. Throws Broken.
  void Audit() const;

 private:
  static std::size_t Index(BlockId id) { return static_cast<std::size_t>(id); }
  [[nodiscard]] std::size_t Home(const Digest& digest) const { return digest.low & mask_; }
  [[nodiscard]] std::size_t CellOf(const Digest& digest) const;  // its cell, or the first empty one

  std::vector<BlockId> cells_;
  std::size_t mask_;
  std::vector<Digest> digests_;  // by block
  std::vector<char> present_;    // by block
  std::int32_t size_ = 0;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_PREFIX_INDEX_H_
