// Hands out cache blocks. Knows nothing of tokens, digests, requests or devices.
#ifndef TOKENSPEED_SCHEDULER_BLOCK_POOL_H_
#define TOKENSPEED_SCHEDULER_BLOCK_POOL_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "fence.h"
#include "ids.h"

namespace tokenspeed {

class BlockPool;

// One share in a block. Move-only. Giving it up is an obligation with a time: `Retire(fence)`.
// Destroying a lease that still holds a block is a bug and ends the process: a silent drop
// would let the block be reused under a running step.
class [[nodiscard]] BlockLease {
 public:
  BlockLease() = default;
  BlockLease(BlockLease&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, kNoBlock)) {}
  BlockLease& operator=(BlockLease&& other) noexcept;
  BlockLease(const BlockLease&) = delete;
  BlockLease& operator=(const BlockLease&) = delete;
  ~BlockLease();

  [[nodiscard]] BlockId id() const { return id_; }

  // Gives the share up. The block can be reused once no share is left and the fences of all
  // shares ever retired have passed.
  // REQUIRES: the lease holds a block.
  void Retire(Fence fence) &&;

 private:
  friend class BlockPool;
  BlockLease(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}

  BlockPool* pool_ = nullptr;
  BlockId id_ = kNoBlock;
};

// Every id in [1, num_blocks) is in exactly one place:
//   free    no share, nothing worth keeping
//   held    at least one share
//   fenced  no share, but a step in flight, a transfer or a peer may touch it
//   idle    no share, contents worth keeping (`Keep`); the least recently retired is evicted first
// Block 0 is the null block and is never handed out.
// All operations but construction are O(1). Not thread-safe. Must outlive every lease; does not
// move.
class BlockPool {
 public:
  enum class Place : std::uint8_t { kFree, kHeld, kFenced, kIdle };

  // How a block was before it was taken or shared.
  struct Undo {
    Place place = Place::kFree;
    BlockId previous = kNoBlock;  // before it in the idle list, if it was there
    std::int32_t shares = 0;
    bool kept = false;
    bool watch_broken = false;
  };

  struct Taken {
    BlockLease lease;
    bool evicted = false;  // its kept contents are gone: the caller must forget their identity
  };

  // REQUIRES: num_blocks >= 2.
  explicit BlockPool(std::int32_t num_blocks);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // A block for new contents: a free one, else the idle one that was retired longest ago.
  // REQUIRES: available() > 0.
  Taken Take(Undo* undo = nullptr);

  // Another share in a block whose contents are kept or held.
  // REQUIRES: the block is held, or kept.
  BlockLease Share(BlockId id, Undo* undo = nullptr);

  // Undoes a Take or a Share as if it had never been.
  // REQUIRES: everything that was taken or shared after it is undone, and nothing else happened.
  void Revoke(BlockLease lease, const Undo& undo);

  // Counts how often a block came back: while it stays the same, no more can be had than before.
  [[nodiscard]] std::uint64_t num_rests() const { return num_rests_; }

  // Marks the contents of a held block as worth keeping after its last share is gone.
  // REQUIRES: held.
  void Keep(BlockId id);

  // Takes the mark back. An idle block becomes free at once.
  // REQUIRES: kept.
  void Forget(BlockId id);

  // Everything fenced up to this step may be reused.
  void Settle(StepId committed);

  // Transfers and peers that may touch blocks, see Fences: open before blocks are retired behind
  // them, passed or lost when that is known.
  void Open(Gate gate) { fences_.Open(gate); }
  void Pass(Gate gate);
  void Lose(Gate gate) { fences_.Lose(gate); }

  // Watching: `watch_broken()` turns true when a watched block changes its place or its mark.
  void Watch(BlockId id) { blocks_[Index(id)].watched = true; }
  void Unwatch(BlockId id) { blocks_[Index(id)].watched = false; }
  void ResetWatch() { watch_broken_ = false; }
  [[nodiscard]] bool watch_broken() const { return watch_broken_; }

  [[nodiscard]] Place place(BlockId id) const { return blocks_[Index(id)].place; }
  [[nodiscard]] bool kept(BlockId id) const { return blocks_[Index(id)].kept; }
  [[nodiscard]] std::int32_t shares(BlockId id) const { return blocks_[Index(id)].shares; }
  [[nodiscard]] std::int32_t usable() const {
    return static_cast<std::int32_t>(blocks_.size()) - 1;
  }
  [[nodiscard]] std::int32_t available() const { return num_free() + num_idle_; }
  [[nodiscard]] std::int32_t num_free() const { return static_cast<std::int32_t>(free_.size()); }
  [[nodiscard]] std::int32_t num_idle() const { return num_idle_; }
  [[nodiscard]] std::int32_t num_fenced() const { return num_fenced_; }
  // Blocks that a lost transfer or peer may still touch: never reused until it is found again.
  [[nodiscard]] std::int32_t num_quarantined() const { return fences_.num_quarantined(); }
  [[nodiscard]] bool quarantined(BlockId id) const { return fences_.quarantined(id); }
  [[nodiscard]] std::int32_t num_held() const { return usable() - available() - num_fenced_; }
  // Idle blocks, the next to be evicted first. O(idle): for audits and resets.
  [[nodiscard]] std::vector<BlockId> IdleInOrder() const;

  // Recomputes every count and list. Throws Broken.
  void Audit() const;

 private:
  friend class BlockLease;

  struct Block {
    std::int32_t shares = 0;
    BlockId previous = kNoBlock;  // idle list
    BlockId next = kNoBlock;
    Place place = Place::kFree;
    bool kept = false;
    bool watched = false;
  };

  static std::size_t Index(BlockId id) { return static_cast<std::size_t>(id); }
  void Retire(BlockId id, Fence fence);
  void Release(BlockId id);  // a fence of it has passed
  void Rest(BlockId id);  // no share, no fence: idle or free
  void MoveTo(BlockId id, Place place);
  [[nodiscard]] Undo Before(BlockId id) const;
  void LinkIdle(BlockId id, BlockId previous);
  void UnlinkIdle(BlockId id);

  std::vector<Block> blocks_;  // fixed after construction; index is the id
  std::vector<BlockId> free_;  // a stack; lowest ids first out at the start
  Fences fences_;
  BlockId idle_first_ = kNoBlock;
  BlockId idle_last_ = kNoBlock;
  std::int32_t num_idle_ = 0;
  std::int32_t num_fenced_ = 0;
  bool watch_broken_ = false;
  std::uint64_t num_rests_ = 0;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_BLOCK_POOL_H_
