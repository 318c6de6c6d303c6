#include "prefix_cache.h"

#include <algorithm>

#include "check.h"

namespace tokenspeed {

Match PrefixCache::Find(std::span<const Digest> digests, std::uint64_t memo_key,
                        bool look_below, const Tailed* tailed) {
  if (!enabled_) return {};
  look_below = look_below && below_ != nullptr;
  if (memo_key != 0 && memo_key == memo_key_ && StillHolds(digests, look_below)) return memo_;
  Forget();
  Match match = Walk(digests, look_below);
  if (tailed != nullptr && !match.looks_below()) FindTail(digests, *tailed, match);
  memo_key_ = memo_key;
  memo_ = match;
  memo_looked_below_ = look_below;
  memo_publications_ = publications_;
  memo_tail_publications_ = tail_publications_;
  if (look_below) memo_below_publications_ = below_->publications_;
  pool_.ResetWatch();
  if (below_ != nullptr) below_->pool_.ResetWatch();
  for (const Found& found : found_) (found.below ? below_->pool_ : pool_).Watch(found.block);
  return match;
}

void PrefixCache::Forget() {
  for (const Found& found : found_) (found.below ? below_->pool_ : pool_).Unwatch(found.block);
  found_.clear();
  memo_key_ = 0;
}

bool PrefixCache::StillHolds(std::span<const Digest> digests, bool look_below) const {
  if (look_below != memo_looked_below_ || pool_.watch_broken()) return false;
  if (look_below && below_->pool_.watch_broken()) return false;
  if (tail_publications_ != memo_tail_publications_) return false;
  if (!one_full_) {
    return publications_ == memo_publications_ &&
           (!look_below || below_->publications_ == memo_below_publications_);
  }
  // What was found below may have come up meanwhile: then it would be found here.
  if (memo_.looks_below() && publications_ != memo_publications_) return false;
  const std::int32_t next = memo_.blocks;
  if (static_cast<std::size_t>(next) == digests.size()) return true;
  return BlockOf(digests, next, 0) == kNoBlock &&
         (!look_below || below_->BlockOf(digests, next, 0) == kNoBlock);
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

std::int32_t PrefixCache::Depth(std::span<const Digest> digests, bool look_below) const {
  look_below = look_below && below_ != nullptr;
  const auto has = [&](std::int32_t column, std::size_t group) {
    return BlockOf(digests, column, group) != kNoBlock ||
           (look_below && below_->BlockOf(digests, column, group) != kNoBlock);
  };
  return DepthWhere(static_cast<std::int32_t>(digests.size()), has);
}

Match PrefixCache::Walk(std::span<const Digest> digests, bool look_below) {
  Match match{.blocks = Depth(digests, look_below)};
  if (match.blocks == 0) return match;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::int32_t first = FirstNeeded(groups_[g], match.blocks);
    for (std::int32_t column = first; column < match.blocks; ++column) {
      BlockId block = BlockOf(digests, column, g);
      const bool below = block == kNoBlock;
      if (below) {
        block = below_->BlockOf(digests, column, g);
        ++(groups_[g].kind == CacheGroup::Kind::kState ? match.state_loads : match.loads);
      } else if (pool_.place(block) == BlockPool::Place::kIdle) {
        ++match.idle;
      }
      found_.push_back({static_cast<std::int32_t>(g), column, block, below});
    }
  }
  return match;
}

// Longest first. O(block size) digests, and none before there was a tail.
void PrefixCache::FindTail(std::span<const Digest> digests, const Tailed& tailed, Match& match) {
  if (min_tail_ == 0 || tail_publications_ == 0) return;
  const auto blocks = static_cast<std::size_t>(match.blocks);
  const std::size_t begin = blocks * static_cast<std::size_t>(block_size_);
  const std::size_t count =
      std::min(tailed.tokens.size() - begin, static_cast<std::size_t>(block_size_) - 1);
  const std::vector<Digest> tails =
      TailDigests(digest_key_, blocks == 0 ? tailed.root : digests[blocks - 1],
                  tailed.tokens.subspan(begin, count));
  for (auto length = static_cast<std::int32_t>(count); length >= min_tail_; --length) {
    const std::span<const Digest> digest(&tails[static_cast<std::size_t>(length) - 1], 1);
    std::size_t has = 0;
    while (has < groups_.size() && BlockOf(digest, 0, has) != kNoBlock) ++has;
    if (has < groups_.size()) continue;
    match.tail = length;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      found_.push_back({static_cast<std::int32_t>(g), match.blocks, BlockOf(digest, 0, g), false,
                        true});
    }
    return;
  }
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

bool PrefixCache::Publish(BlockId block, const Digest& digest) {
  if (!enabled_ || index_.Contains(block)) return false;
  const BlockId existing = index_.Find(digest);
  if (existing != kNoBlock) {
    if (pool_.place(existing) == BlockPool::Place::kHeld) return false;
    index_.Erase(existing);
    pool_.Forget(existing);
  }
  if (existing == kNoBlock) Record(digest, true);
  ++publications_;
  index_.Insert(digest, block);
  pool_.Keep(block);
  return true;
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
