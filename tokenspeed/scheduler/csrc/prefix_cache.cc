#include "prefix_cache.h"

#include "check.h"

namespace tokenspeed {

Match PrefixCache::Find(std::span<const Digest> digests, std::uint64_t memo_key) {
  if (!enabled_) return {};
  const bool same = memo_key != 0 && memo_key == memo_key_ && !pool_.watch_broken();
  if (same) {
    const auto next = static_cast<std::size_t>(memo_.blocks);
    if (next == digests.size() || index_.Find(digests[next]) == kNoBlock) return memo_;
  }
  for (const BlockId block : watched_) pool_.Unwatch(block);
  watched_.clear();
  const Match match = Walk(digests);
  memo_key_ = memo_key;
  memo_ = match;
  pool_.ResetWatch();
  for (const BlockId block : watched_) pool_.Watch(block);
  return match;
}

Match PrefixCache::Walk(std::span<const Digest> digests) {
  Match match;
  for (const Digest& digest : digests) {
    const BlockId block = index_.Find(digest);
    if (block == kNoBlock) break;
    ++match.blocks;
    if (pool_.place(block) == BlockPool::Place::kIdle) ++match.idle;
    watched_.push_back(block);
  }
  return match;
}

void PrefixCache::Claim(std::int32_t count, std::vector<BlockLease>& into) {
  TS_CHECK(static_cast<std::size_t>(count) <= watched_.size(), "claimed more than was found");
  for (std::int32_t i = 0; i < count; ++i) {
    into.push_back(pool_.Share(watched_[static_cast<std::size_t>(i)]));
  }
}

BlockLease PrefixCache::Take() {
  BlockPool::Taken taken = pool_.Take();
  if (taken.evicted) index_.Erase(taken.lease.id());
  return std::move(taken.lease);
}

void PrefixCache::Publish(BlockId block, const Digest& digest) {
  if (!enabled_ || index_.Contains(block)) return;
  const BlockId existing = index_.Find(digest);
  if (existing != kNoBlock) {
    if (pool_.place(existing) == BlockPool::Place::kHeld) return;
    index_.Erase(existing);
    pool_.Forget(existing);
  }
  index_.Insert(digest, block);
  pool_.Keep(block);
}

std::int32_t PrefixCache::Reset() {
  const std::int32_t forgotten = index_.size();
  for (BlockId block = 1; block <= pool_.usable(); ++block) {
    if (!index_.Contains(block)) continue;
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
