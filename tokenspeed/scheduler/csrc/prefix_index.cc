#include "prefix_index.h"

#include <bit>

#include "check.h"

namespace tokenspeed {

PrefixIndex::PrefixIndex(std::int32_t num_blocks)
    : cells_(std::bit_ceil(2 * Index(num_blocks)), kNoBlock),
      mask_(cells_.size() - 1),
      digests_(Index(num_blocks)),
      present_(Index(num_blocks), 0) {}

std::size_t PrefixIndex::CellOf(const Digest& digest) const {
  std::size_t cell = Home(digest);
  while (cells_[cell] != kNoBlock && digests_[Index(cells_[cell])] != digest) {
    cell = (cell + 1) & mask_;
  }
  return cell;
}

BlockId PrefixIndex::Find(const Digest& digest) const { return cells_[CellOf(digest)]; }

void PrefixIndex::Insert(const Digest& digest, BlockId block) {
  const std::size_t cell = CellOf(digest);
  TS_CHECK(cells_[cell] == kNoBlock, "a digest names one block");
  TS_CHECK(!Contains(block), "a block has one digest");
  cells_[cell] = block;
  digests_[Index(block)] = digest;
  present_[Index(block)] = 1;
  ++size_;
}

void PrefixIndex::Erase(BlockId block) {
  TS_CHECK(Contains(block), "erased twice");
  std::size_t hole = CellOf(digests_[Index(block)]);
  present_[Index(block)] = 0;
  --size_;
  // Pull back every later entry of the run that may live in the hole: one whose home is not
  // cyclically inside (hole, cell].
  for (std::size_t cell = (hole + 1) & mask_; cells_[cell] != kNoBlock; cell = (cell + 1) & mask_) {
    const std::size_t home = Home(digests_[Index(cells_[cell])]);
    if (((cell - home) & mask_) >= ((cell - hole) & mask_)) {
      cells_[hole] = cells_[cell];
      hole = cell;
    }
  }
  cells_[hole] = kNoBlock;
}

void PrefixIndex::Audit() const {
  std::int32_t count = 0;
  for (BlockId block = 0; Index(block) < present_.size(); ++block) {
    if (!Contains(block)) continue;
    TS_CHECK(Find(digests_[Index(block)]) == block, "every entry is found under its digest");
    ++count;
  }
  std::int32_t cells = 0;
  for (const BlockId block : cells_) cells += block == kNoBlock ? 0 : 1;
  TS_CHECK(count == size_ && cells == size_, "the index size equals recomputation");
}

}  // namespace tokenspeed
