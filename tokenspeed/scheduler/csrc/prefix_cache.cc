#include "prefix_cache.h"

#include <algorithm>

#include "check.h"

namespace tokenspeed {

Match PrefixCache::Find(std::span<const Digest> digests, std::uint64_t memo_key) {
  if (!enabled_) return {};
  const bool same = memo_key != 0 && memo_key == memo_key_ && !pool_.watch_broken();
  if (same && StillHolds(digests)) return memo_;
  Forget();
  const Match match = Walk(digests);
  memo_key_ = memo_key;
  memo_ = match;
  memo_publications_ = publications_;
  pool_.ResetWatch();
  for (const Found& found : found_) pool_.Watch(found.block);
  return match;
}

void PrefixCache::Forget() {
  for (const Found& found : found_) pool_.Unwatch(found.block);
  found_.clear();
  memo_key_ = 0;
}

bool PrefixCache::StillHolds(std::span<const Digest> digests) const {
  if (!one_full_) return publications_ == memo_publications_;
  const auto next = static_cast<std::size_t>(memo_.blocks);
  return next == digests.size() || index_.Find(digests[next]) == kNoBlock;
}

std::int32_t PrefixCache::FirstNeeded(const CacheGroup& group, std::int32_t blocks) const {
  switch (group.kind) {
    case CacheGroup::Kind::kFull: return 0;
    case CacheGroup::Kind::kWindow:
      return std::max(0, blocks * block_size_ - group.window + 1) / block_size_;
    case CacheGroup::Kind::kState: return blocks - 1;
  }
  return 0;
}

// Full groups from the left, since all of it must be there; then the others from the right. A
// missing block rules out every prefix that needs it: those beyond it, down to its beginning.
std::int32_t PrefixCache::Depth(std::span<const Digest> digests) const {
  if (!enabled_) return 0;
  auto blocks = static_cast<std::int32_t>(digests.size());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind != CacheGroup::Kind::kFull) continue;
    std::int32_t run = 0;
    while (run < blocks && BlockOf(digests, run, g) != kNoBlock) ++run;
    blocks = run;
  }
  for (bool agreed = one_full_; !agreed && blocks > 0;) {
    agreed = true;
    for (std::size_t g = 0; g < groups_.size() && agreed; ++g) {
      if (groups_[g].kind == CacheGroup::Kind::kFull) continue;
      const std::int32_t first = FirstNeeded(groups_[g], blocks);
      for (std::int32_t column = blocks - 1; column >= first && agreed; --column) {
        if (BlockOf(digests, column, g) != kNoBlock) continue;
        blocks = column;
        agreed = false;
      }
    }
  }
  return blocks;
}

Match PrefixCache::Walk(std::span<const Digest> digests) {
  Match match{.blocks = Depth(digests)};
  if (match.blocks == 0) return match;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int32_t first = FirstNeeded(groups_[g], match.blocks);
    for (std::int32_t column = first; column < match.blocks; ++column) {
      const BlockId block = BlockOf(digests, column, g);
      if (pool_.place(block) == BlockPool::Place::kIdle) ++match.idle;
      found_.push_back({static_cast<std::int32_t>(g), column, block});
    }
  }
  return match;
}

BlockLease PrefixCache::Take(Undo* undo) {
  BlockPool::Taken taken = pool_.Take(undo == nullptr ? nullptr : &undo->block);
  if (taken.evicted) {
    const BlockId block = taken.lease.id();
    if (undo != nullptr) {
      undo->was_evicted = true;
      undo->evicted = index_.DigestOf(block);
    }
    Record(index_.DigestOf(block), false);
    index_.Erase(block);
  }
  return std::move(taken.lease);
}

void PrefixCache::Revoke(BlockLease lease, const Undo& undo) {
  if (undo.was_evicted) {
    index_.Insert(undo.evicted, lease.id());
    if (records_) events_.pop_back();
  }
  pool_.Revoke(std::move(lease), undo.block);
}

void PrefixCache::Publish(BlockId block, const Digest& digest) {
  if (!enabled_ || index_.Contains(block)) return;
  const BlockId existing = index_.Find(digest);
  if (existing != kNoBlock) {
    if (pool_.place(existing) == BlockPool::Place::kHeld) return;
    index_.Erase(existing);
    pool_.Forget(existing);
  }
  if (existing == kNoBlock) Record(digest, true);
  ++publications_;
  index_.Insert(digest, block);
  pool_.Keep(block);
}

std::int32_t PrefixCache::Reset() {
  const std::int32_t forgotten = index_.size();
  for (BlockId block = 1; block <= pool_.usable(); ++block) {
    if (!index_.Contains(block)) continue;
    Record(index_.DigestOf(block), false);
    index_.Erase(block);
    pool_.Forget(block);
  }
  ++generation_;
  return forgotten;
}

void PrefixCache::Audit() const {
  pool_.Audit();
  index_.Audit();
  for (BlockId block = 1; block <= pool_.usable(); ++block) {
    TS_CHECK(pool_.kept(block) == index_.Contains(block), "kept means indexed");
  }
  TS_CHECK(!index_.Contains(kNullBlock), "the null block holds no prefix");
}

}  // namespace tokenspeed
