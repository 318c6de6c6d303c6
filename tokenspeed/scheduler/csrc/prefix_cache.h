// Which blocks hold which prefixes: the pool and the index, kept in agreement.
#ifndef TOKENSPEED_SCHEDULER_PREFIX_CACHE_H_
#define TOKENSPEED_SCHEDULER_PREFIX_CACHE_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "block_pool.h"
#include "config.h"
#include "digest.h"
#include "prefix_index.h"

namespace tokenspeed {

// What a prompt finds in the cache.
struct Match {
  std::int32_t blocks = 0;  // leading blocks that are cached
  std::int32_t idle = 0;    // of these, how many count as available until they are claimed
  std::int32_t loads = 0;   // blocks of tokens, over all groups, that only the tier below has
  std::int32_t state_loads = 0;  // states that only the tier below has
  std::int32_t tail = 0;  // tokens behind them that a block to be copied holds

  [[nodiscard]] bool looks_below() const { return loads + state_loads > 0; }
};

// One cached block of a match: it goes into this column of this group.
struct Found {
  std::int32_t group;
  std::int32_t column;
  BlockId block;
  bool below = false;  // the block is one of the tier below
  bool tail = false;   // a copy of the block does: of it only `Match::tail` tokens are meant
};

// A prompt whose tail is looked for too: its tokens but the last, which is always computed.
struct Tailed {
  Digest root;
  std::span<const Token> tokens;
};

// A prefix block became findable, or ceased to be. In order, these replay to the index.
struct PrefixEvent {
  Digest digest;  // of the block, mixed with its group
  bool stored;
};

// Invariant: a block is in the index exactly when the pool keeps it.
//
// Eviction takes the block retired longest ago. A holder retires its blocks last to first, so
// the end of a prefix goes before its beginning. (A chain that continues another holder's copy
// of an equal block can lose its beginning first; what follows is then unreachable and ages out
// like everything else.)
// Not thread-safe.
class PrefixCache {
 public:
  // `enabled` false: nothing is ever published or found.
  // `below`, if any, is the cache of the next tier, and outlives this one.
  explicit PrefixCache(const Config& config, PrefixCache* below = nullptr)
      : below_(below),
        pool_(config.num_blocks),
        index_(config.num_blocks),
        enabled_(config.prefix_cache),
        records_(config.prefix_events),
        block_size_(config.block_size),
        min_tail_(config.min_tail_tokens),
        digest_key_(config.digest_key),
        groups_(config.groups),
        one_full_(groups_.size() == 1 && groups_[0].kind == CacheGroup::Kind::kFull) {}

  // The longest prefix, in whole blocks, that every group can go on from: full groups have all
  // its blocks, window groups those that the next token reads, state groups the state after it.
  // O(digests), but O(1) when asked again for the same `memo_key` while nothing that decides the
  // answer has changed. 0 is no key.
  // With `look_below`, blocks of the tier below count too; what both have is found here. With
  // `tailed`, the longest tail behind a match that is found here whole is a part of it.
  Match Find(std::span<const Digest> digests, std::uint64_t memo_key, bool look_below = false,
             const Tailed* tailed = nullptr);

  // The blocks that Find would find, and nothing remembered. O(digests).
  [[nodiscard]] std::int32_t Depth(std::span<const Digest> digests, bool look_below = false) const;

  // The same of `blocks` blocks of which `has(column, group)` says which are to be had.
  template <typename Has>
  [[nodiscard]] std::int32_t DepthWhere(std::int32_t blocks, Has has) const;

  // The first block of a group that must be cached for a prefix of `blocks` blocks.
  [[nodiscard]] std::int32_t FirstNeeded(const CacheGroup& group, std::int32_t blocks) const;

  // The block known under the digest of a column, for a group. kNoBlock when there is none.
  [[nodiscard]] BlockId BlockOf(std::span<const Digest> digests, std::int32_t column,
                                std::size_t group) const {
    return index_.Find(
        InGroup(digests[static_cast<std::size_t>(column)], static_cast<std::int32_t>(group)));
  }
  // Whether the block is the one known by this digest.
  [[nodiscard]] bool Holds(BlockId block, const Digest& digest) const {
    return index_.Contains(block) && index_.DigestOf(block) == digest;
  }

  // The blocks of the match that Find returned last, group by group, in order of columns.
  // REQUIRES: nothing changed since.
  [[nodiscard]] const std::vector<Found>& found() const { return found_; }

  // Nothing is found: for whoever must not read the cache.
  void Forget();

  // What it takes to undo a Take or a Share.
  struct Undo {
    BlockPool::Undo block;
    Digest evicted;  // what the block held, if it was evicted
    bool was_evicted = false;
  };

  // A share in one of `found()`.
  BlockLease Share(BlockId block, Undo* undo = nullptr) {
    return pool_.Share(block, undo == nullptr ? nullptr : &undo->block);
  }

  // A block for new contents, evicting if there is no free one. O(1).
  // REQUIRES: pool().available() > 0.
  BlockLease Take(Undo* undo = nullptr);

  // Undoes a Take or a Share, see BlockPool::Revoke.
  void Revoke(BlockLease lease, const Undo& undo);

  // The held `block` contains, or will contain when the steps in flight are through, what
  // `digest` names. An equal block that somebody holds stays the one to be found; one that
  // nobody holds is dropped in favour of this. Returns whether this block is now the one.
  bool Publish(BlockId block, const Digest& digest);

  // The same of a tail: the block's leading tokens, fewer than a block, are known by `digest`.
  void PublishTail(BlockId block, const Digest& digest) {
    if (Publish(block, digest)) ++tail_publications_;
  }

  // Forgets every prefix. Blocks in use stay in use. Returns how many were forgotten. O(pool).
  std::int32_t Reset();

  // What changed since the last call, if the configuration asks for it. A block that takes over
  // a digest from another is no change.
  [[nodiscard]] std::vector<PrefixEvent> TakeEvents() { return std::exchange(events_, {}); }

  // Counts resets: who took blocks before a reset must not publish after it, because what it
  // continues is no longer vouched for.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  [[nodiscard]] bool enabled() const { return enabled_; }
  [[nodiscard]] const PrefixIndex& index() const { return index_; }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  void Settle(StepId committed) { pool_.Settle(committed); }
  void Open(Gate gate) { pool_.Open(gate); }
  void Pass(Gate gate) { pool_.Pass(gate); }
  void Lose(Gate gate) { pool_.Lose(gate); }

  // Throws Broken.
  void Audit() const;

 private:
  Match Walk(std::span<const Digest> digests, bool look_below);
  [[nodiscard]] bool StillHolds(std::span<const Digest> digests, bool look_below) const;
  void FindTail(std::span<const Digest> digests, const Tailed& tailed, Match& match);
  void Record(const Digest& digest, bool stored) {
    if (records_) events_.push_back({digest, stored});
  }

  PrefixCache* const below_;
  BlockPool pool_;
  PrefixIndex index_;
  const bool enabled_;
  const bool records_;
  const std::int32_t block_size_;
  const std::int32_t min_tail_;
  const DigestKey digest_key_;
  const std::vector<CacheGroup> groups_;
  const bool one_full_;
  std::uint64_t generation_ = 0;

  // The last answer. Valid while the pool saw no change of a block in it, and the digest after the
  // match is still absent (one full group) or nothing was published since (else), and no tail was.
  std::uint64_t publications_ = 0;
  std::uint64_t memo_publications_ = 0;
  std::uint64_t tail_publications_ = 0;
  std::uint64_t memo_tail_publications_ = 0;
  std::uint64_t memo_below_publications_ = 0;
  std::uint64_t memo_key_ = 0;
  bool memo_looked_below_ = false;
  Match memo_;
  std::vector<Found> found_;
  std::vector<PrefixEvent> events_;
};

// Full groups from the left, since all of it must be there; then the others from the right. A
// missing block rules out every prefix that needs it: those beyond it, down to its beginning.
template <typename Has>
std::int32_t PrefixCache::DepthWhere(std::int32_t blocks, Has has) const {
  if (!enabled_) return 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind != CacheGroup::Kind::kFull) continue;
    std::int32_t run = 0;
    while (run < blocks && has(run, g)) ++run;
    blocks = run;
  }
  for (bool agreed = one_full_; !agreed && blocks > 0;) {
    agreed = true;
    for (std::size_t g = 0; g < groups_.size() && agreed; ++g) {
      if (groups_[g].kind == CacheGroup::Kind::kFull) continue;
      const std::int32_t first = FirstNeeded(groups_[g], blocks);
      for (std::int32_t column = blocks - 1; column >= first && agreed; --column) {
        if (has(column, g)) continue;
        blocks = column;
        agreed = false;
      }
    }
  }
  return blocks;
}

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_PREFIX_CACHE_H_
