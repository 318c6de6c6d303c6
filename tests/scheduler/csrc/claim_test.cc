#include "claim.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace tokenspeed {
namespace {

Digest Name(std::uint64_t n) { return {n * 0x9e3779b97f4a7c15ULL, n}; }

// Everything that later calls can see of a cache.
struct Snapshot {
  std::vector<BlockPool::Place> places;
  std::vector<std::int32_t> shares;
  std::vector<bool> found;
  std::vector<BlockId> idle;
  bool watch_broken;

  explicit Snapshot(const PrefixCache& cache) : idle(cache.pool().IdleInOrder()) {
    for (BlockId id = 1; id <= cache.pool().usable(); ++id) {
      places.push_back(cache.pool().place(id));
      shares.push_back(cache.pool().shares(id));
      found.push_back(cache.index().Contains(id));
    }
    watch_broken = cache.pool().watch_broken();
  }
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

// Two claims of the same blocks, the first undone: the second takes exactly the same.
TEST(ClaimTest, WhatIsUndoneHasNeverBeen) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Config config{.num_blocks = 20, .block_size = 4, .digest_key = {1, 2}, .prefix_events = true};
    PrefixCache cache(config);
    std::vector<BlockLease> held;
    std::vector<BlockId> published;
    StepId step = 0;
    // Some blocks held, some idle, some fenced, some free.
    for (int i = 0; i < 16; ++i) {
      BlockLease lease = cache.Take();
      if (random() % 3 != 0) {
        cache.Publish(lease.id(), Name(seed * 100 + i));
        published.push_back(lease.id());
      }
      switch (random() % 3) {
        case 0: held.push_back(std::move(lease)); break;
        case 1: std::move(lease).Retire(Fence::Now()); break;
        default: std::move(lease).Retire(Fence::AfterStep(++step)); break;
      }
    }
    (void)cache.TakeEvents();
    const Snapshot before(cache);
    const auto claim_some = [&](Claim& claim) {
      std::mt19937 choices(seed);
      for (const BlockId block : published) {
        if (choices() % 3 == 0) claim.Share({.group = 0, .column = 0, .block = block}, 0);
      }
      bool there = true;
      for (auto left = choices() % 20; left > 0 && there; --left) there = claim.Take(0, 1);
    };
    std::vector<BlockId> undone;
    {
      Claim claim(cache);
      claim_some(claim);
      cache.Audit();
      for (const Claim::Entry& entry : claim.entries()) undone.push_back(entry.lease.id());
    }
    cache.Audit();
    ASSERT_TRUE(before == Snapshot(cache));
    ASSERT_TRUE(cache.TakeEvents().empty());
    Claim claim(cache);
    claim_some(claim);
    std::vector<BlockId> kept;
    for (Claim::Entry& entry : std::move(claim).Keep()) {
      kept.push_back(entry.lease.id());
      held.push_back(std::move(entry.lease));
    }
    ASSERT_EQ(kept, undone);
    for (BlockLease& lease : held) std::move(lease).Retire(Fence::Now());
    cache.Settle(step);
    cache.Audit();
  }
}

}  // namespace
}  // namespace tokenspeed
