#include "block_pool.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "check.h"

namespace tokenspeed {

BlockLease& BlockLease::operator=(BlockLease&& other) noexcept {
  if (this != &other) {
    BlockLease dropped(std::move(*this));  // ends the process when a share would be lost
    pool_ = std::exchange(other.pool_, nullptr);
    id_ = std::exchange(other.id_, kNoBlock);
  }
  return *this;
}

BlockLease::~BlockLease() {
  if (pool_ != nullptr) {
    std::fprintf(stderr, "block %d was dropped without Retire(fence)\n", id_);
    std::abort();
  }
}

void BlockLease::Retire(Fence fence) && {
  TS_CHECK(pool_ != nullptr, "an empty lease holds nothing to retire");
  std::exchange(pool_, nullptr)->Retire(std::exchange(id_, kNoBlock), fence);
}

BlockPool::BlockPool(std::int32_t num_blocks)
    : blocks_(static_cast<std::size_t>(num_blocks)), fences_(num_blocks) {
  TS_CHECK(num_blocks >= 2, "a pool needs the null block and one more");
  free_.reserve(blocks_.size());
  for (BlockId id = num_blocks - 1; id > kNullBlock; --id) free_.push_back(id);
}

BlockPool::Undo BlockPool::Before(BlockId id) const {
  const Block& block = blocks_[Index(id)];
  return {.place = block.place,
          .previous = block.previous,
          .shares = block.shares,
          .kept = block.kept,
          .watch_broken = watch_broken_};
}

BlockPool::Taken BlockPool::Take(Undo* undo) {
  Taken taken;
  BlockId id = kNoBlock;
  if (!free_.empty()) {
    id = free_.back();
  } else {
    TS_CHECK(idle_first_ != kNoBlock, "the caller must see available() > 0 first");
    id = idle_first_;
    taken.evicted = true;
  }
  Block& block = blocks_[Index(id)];
  if (undo != nullptr) *undo = Before(id);
  MoveTo(id, Place::kHeld);
  block.kept = false;
  block.shares = 1;
  taken.lease = BlockLease(this, id);
  return taken;
}

BlockLease BlockPool::Share(BlockId id, Undo* undo) {
  Block& block = blocks_[Index(id)];
  if (undo != nullptr) *undo = Before(id);
  TS_CHECK(block.place == Place::kHeld || block.kept, "a block without contents has no shares");
  if (block.place != Place::kHeld) MoveTo(id, Place::kHeld);
  ++block.shares;
  return BlockLease(this, id);
}

void BlockPool::Revoke(BlockLease lease, const Undo& undo) {
  const BlockId id = lease.id();
  Block& block = blocks_[Index(id)];
  TS_CHECK(lease.pool_ == this && block.shares == undo.shares + 1, "the last is undone first");
  lease.pool_ = nullptr;
  block.shares = undo.shares;
  block.kept = undo.kept;
  block.place = undo.place;
  watch_broken_ = undo.watch_broken;
  switch (undo.place) {
    case Place::kFree: free_.push_back(id); break;
    case Place::kIdle: LinkIdle(id, undo.previous); break;
    case Place::kFenced: ++num_fenced_; break;  // what it waits for has not forgotten it
    case Place::kHeld: break;
  }
}

void BlockPool::Keep(BlockId id) {
  Block& block = blocks_[Index(id)];
  TS_CHECK(block.place == Place::kHeld, "only a holder knows what a block contains");
  block.kept = true;
}

void BlockPool::Forget(BlockId id) {
  Block& block = blocks_[Index(id)];
  TS_CHECK(block.kept, "forgotten twice");
  if (block.watched) watch_broken_ = true;
  block.kept = false;
  if (block.place == Place::kIdle) MoveTo(id, Place::kFree);
}

void BlockPool::Retire(BlockId id, Fence fence) {
  Block& block = blocks_[Index(id)];
  TS_CHECK(block.place == Place::kHeld && block.shares > 0, "retired more often than shared");
  fences_.Add(id, fence);
  if (--block.shares > 0) return;
  if (fences_.Pending(id)) {
    MoveTo(id, Place::kFenced);
    fences_.Await(id);
  } else {
    Rest(id);
  }
}

void BlockPool::Settle(StepId committed) {
  fences_.Settle(committed, [this](BlockId id) { Release(id); });
}

void BlockPool::Pass(Gate gate) {
  fences_.Pass(gate, [this](BlockId id) { Release(id); });
}

// It may have been shared again meanwhile, and may wait for something else by now.
void BlockPool::Release(BlockId id) {
  if (blocks_[Index(id)].place == Place::kFenced && !fences_.Pending(id)) Rest(id);
}

void BlockPool::Rest(BlockId id) {
  ++num_rests_;
  MoveTo(id, blocks_[Index(id)].kept ? Place::kIdle : Place::kFree);
}

void BlockPool::MoveTo(BlockId id, Place place) {
  Block& block = blocks_[Index(id)];
  if (block.watched) watch_broken_ = true;
  switch (block.place) {
    case Place::kFree: free_.pop_back(); break;  // only ever the top of the stack is taken
    case Place::kIdle: UnlinkIdle(id); break;
    case Place::kFenced: --num_fenced_; break;
    case Place::kHeld: break;
  }
  block.place = place;
  switch (place) {
    case Place::kFree: free_.push_back(id); break;
    case Place::kIdle: LinkIdle(id, idle_last_); break;
    case Place::kFenced: ++num_fenced_; break;
    case Place::kHeld: break;
  }
}

void BlockPool::LinkIdle(BlockId id, BlockId previous) {
  Block& block = blocks_[Index(id)];
  BlockId& link = previous == kNoBlock ? idle_first_ : blocks_[Index(previous)].next;
  block.previous = previous;
  block.next = link;
  (block.next == kNoBlock ? idle_last_ : blocks_[Index(block.next)].previous) = id;
  link = id;
  ++num_idle_;
}

void BlockPool::UnlinkIdle(BlockId id) {
  const Block& block = blocks_[Index(id)];
  (block.previous == kNoBlock ? idle_first_ : blocks_[Index(block.previous)].next) = block.next;
  (block.next == kNoBlock ? idle_last_ : blocks_[Index(block.next)].previous) = block.previous;
  --num_idle_;
}

std::vector<BlockId> BlockPool::IdleInOrder() const {
  std::vector<BlockId> ids;
  for (BlockId id = idle_first_; id != kNoBlock; id = blocks_[Index(id)].next) ids.push_back(id);
  return ids;
}

void BlockPool::Audit() const {
  fences_.Audit();
  std::vector<int> seen(blocks_.size(), 0);
  for (const BlockId id : free_) {
    TS_CHECK(id > kNullBlock && id <= usable(), "the null block and foreign ids are never free");
    TS_CHECK(blocks_[Index(id)].place == Place::kFree, "a free block says where it is");
    ++seen[Index(id)];
  }
  for (const BlockId id : IdleInOrder()) {
    TS_CHECK(blocks_[Index(id)].place == Place::kIdle, "an idle block says where it is");
    ++seen[Index(id)];
  }
  std::int32_t fenced = 0;
  std::int32_t idle = 0;
  for (BlockId id = 1; id <= usable(); ++id) {
    const Block& block = blocks_[Index(id)];
    const bool listed = block.place == Place::kFree || block.place == Place::kIdle;
    TS_CHECK(seen[Index(id)] == (listed ? 1 : 0), "a block is in exactly one place");
    TS_CHECK((block.shares > 0) == (block.place == Place::kHeld), "held means shared");
    TS_CHECK(block.place != Place::kIdle || block.kept, "idle blocks are kept");
    TS_CHECK(block.place != Place::kFree || !block.kept, "free blocks are not kept");
    TS_CHECK(block.place != Place::kFenced || fences_.Pending(id), "a passed fence holds none");
    TS_CHECK(!listed || !fences_.Pending(id), "a block is reusable only after its fences");
    fenced += block.place == Place::kFenced ? 1 : 0;
    idle += block.place == Place::kIdle ? 1 : 0;
  }
  TS_CHECK(fenced == num_fenced_, "the fenced count equals recomputation");
  TS_CHECK(idle == num_idle_, "the idle count equals recomputation");
}

}  // namespace tokenspeed
