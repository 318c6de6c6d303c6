#include "block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "check.h"

namespace tokenspeed {
namespace {

using Place = BlockPool::Place;

TEST(BlockPoolTest, HandsOutEveryBlockButTheNullBlock) {
  BlockPool pool(5);
  std::vector<BlockLease> leases;
  for (BlockId expected = 1; expected <= 4; ++expected) {
    leases.push_back(pool.Take().lease);
    EXPECT_EQ(leases.back().id(), expected);
  }
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.num_held(), 4);
  EXPECT_THROW(pool.Take(), Broken);
  for (BlockLease& lease : leases) std::move(lease).Retire(Fence::Now());
  EXPECT_EQ(pool.num_free(), 4);
  pool.Audit();
}

TEST(BlockPoolTest, IsFreeOnlyAfterTheLastShareAndTheLatestFence) {
  BlockPool pool(3);
  BlockLease first = pool.Take().lease;
  const BlockId id = first.id();
  BlockLease second = pool.Share(id);
  // The first holder was in step 7; the last one to leave was in none. The block waits for 7.
  std::move(first).Retire(Fence::AfterStep(7));
  EXPECT_EQ(pool.place(id), Place::kHeld);
  std::move(second).Retire(Fence::Now());
  EXPECT_EQ(pool.place(id), Place::kFenced);
  EXPECT_EQ(pool.num_fenced(), 1);
  pool.Settle(6);
  EXPECT_EQ(pool.place(id), Place::kFenced);
  pool.Audit();
  pool.Settle(7);
  EXPECT_EQ(pool.place(id), Place::kFree);
  pool.Audit();
}

TEST(BlockPoolTest, FencesPassInAnyOrderOfRetirement) {
  BlockPool pool(3);
  BlockLease late = pool.Take().lease;
  BlockLease early = pool.Take().lease;
  std::move(late).Retire(Fence::AfterStep(2));
  std::move(early).Retire(Fence::AfterStep(1));
  pool.Settle(1);
  EXPECT_EQ(pool.place(1), Place::kFenced);
  EXPECT_EQ(pool.place(2), Place::kFree);
  pool.Settle(2);
  EXPECT_EQ(pool.place(1), Place::kFree);
  pool.Audit();
}

TEST(BlockPoolTest, KeptContentsAreEvictedLongestRetiredFirst) {
  BlockPool pool(4);
  for (int i = 0; i < 3; ++i) {
    BlockLease lease = pool.Take().lease;
    pool.Keep(lease.id());
    std::move(lease).Retire(Fence::Now());
    EXPECT_EQ(pool.num_idle(), i + 1);
  }
  EXPECT_EQ(pool.IdleInOrder(), (std::vector<BlockId>{1, 2, 3}));
  std::move(pool.Share(1)).Retire(Fence::Now());  // used again: now the youngest
  EXPECT_EQ(pool.IdleInOrder(), (std::vector<BlockId>{2, 3, 1}));
  BlockPool::Taken taken = pool.Take();
  EXPECT_TRUE(taken.evicted);
  EXPECT_EQ(taken.lease.id(), 2);
  EXPECT_FALSE(pool.kept(2));
  pool.Forget(3);
  EXPECT_EQ(pool.place(3), Place::kFree);
  BlockPool::Taken fresh = pool.Take();
  EXPECT_FALSE(fresh.evicted) << "a free block goes before a kept one";
  pool.Audit();
  std::move(taken.lease).Retire(Fence::Now());
  std::move(fresh.lease).Retire(Fence::Now());
}

TEST(BlockPoolTest, AFencedBlockCanBeSharedAgainAndThenIgnoresTheOldFence) {
  BlockPool pool(2);
  BlockLease lease = pool.Take().lease;
  pool.Keep(1);
  std::move(lease).Retire(Fence::AfterStep(1));
  BlockLease again = pool.Share(1);
  EXPECT_EQ(pool.num_fenced(), 0);
  pool.Settle(1);
  EXPECT_EQ(pool.place(1), Place::kHeld);
  std::move(again).Retire(Fence::AfterStep(2));
  EXPECT_EQ(pool.place(1), Place::kFenced);
  pool.Settle(2);
  EXPECT_EQ(pool.place(1), Place::kIdle);
  pool.Audit();
}

TEST(BlockPoolTest, ABlockWaitsForItsStepItsTransferAndItsPeer) {
  const std::vector<std::vector<int>> orders = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                                {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    BlockPool pool(3);
    pool.Open(Gate::Of(5));
    pool.Open(Gate::OfPeer(5));
    BlockLease lease = pool.Take().lease;
    std::move(lease).Retire({.step = 1, .ticket = 5, .peer = 5});
    for (const int passes : order) {
      EXPECT_EQ(pool.place(1), Place::kFenced);
      if (passes == 0) pool.Settle(1);
      if (passes == 1) pool.Pass(Gate::Of(5));
      if (passes == 2) pool.Pass(Gate::OfPeer(5));
      pool.Audit();
    }
    EXPECT_EQ(pool.place(1), Place::kFree);
  }
}

TEST(BlockPoolTest, EveryHoldersTransferCountsAndThoseThatAreThroughDoNot) {
  BlockPool pool(3);
  BlockLease first = pool.Take().lease;
  pool.Keep(1);
  for (const TicketId ticket : {1, 2}) {
    pool.Open(Gate::Of(ticket));
    std::move(pool.Share(1)).Retire(Fence::AfterTicket(ticket));
  }
  std::move(first).Retire(Fence::AfterTicket(3));  // never opened, or through already
  pool.Pass(Gate::Of(2));
  EXPECT_EQ(pool.place(1), Place::kFenced);
  BlockLease reader = pool.Share(1);  // what is kept can be read meanwhile
  pool.Pass(Gate::Of(1));
  EXPECT_EQ(pool.place(1), Place::kHeld);
  std::move(reader).Retire(Fence::Now());
  EXPECT_EQ(pool.place(1), Place::kIdle);
  EXPECT_THROW(pool.Pass(Gate::Of(1)), Broken) << "it is acknowledged once";
  pool.Audit();
}

TEST(BlockPoolTest, WhatALostTransferMayTouchStaysInQuarantineUntilItIsFound) {
  BlockPool pool(3);
  pool.Open(Gate::Of(1));
  pool.Open(Gate::Of(2));
  std::move(pool.Take().lease).Retire({.step = 4, .ticket = 1});
  pool.Lose(Gate::Of(1));
  pool.Lose(Gate::Of(1));
  EXPECT_EQ(pool.num_quarantined(), 1);
  pool.Settle(4);
  EXPECT_EQ(pool.place(1), Place::kFenced);
  pool.Lose(Gate::Of(2));
  std::move(pool.Take().lease).Retire(Fence::AfterTicket(2));  // behind what is lost already
  EXPECT_TRUE(pool.quarantined(2));
  EXPECT_EQ(pool.available(), 0);
  pool.Audit();
  pool.Pass(Gate::Of(1));
  EXPECT_EQ(pool.place(1), Place::kFree);
  EXPECT_EQ(pool.num_quarantined(), 1);
  pool.Pass(Gate::Of(2));
  EXPECT_EQ(pool.num_quarantined(), 0);
  EXPECT_EQ(pool.num_free(), 2);
  pool.Audit();
}

TEST(BlockPoolTest, WatchesNoticeEveryChangeOfPlace) {
  BlockPool pool(3);
  BlockLease lease = pool.Take().lease;
  pool.Keep(1);
  pool.Watch(1);
  EXPECT_FALSE(pool.watch_broken());
  BlockLease other = pool.Take().lease;
  BlockLease share = pool.Share(1);
  std::move(share).Retire(Fence::Now());
  EXPECT_FALSE(pool.watch_broken()) << "it is held as before";
  std::move(lease).Retire(Fence::AfterStep(1));
  EXPECT_TRUE(pool.watch_broken());
  pool.ResetWatch();
  pool.Settle(1);
  EXPECT_TRUE(pool.watch_broken());
  pool.ResetWatch();
  pool.Unwatch(1);
  pool.Forget(1);
  EXPECT_FALSE(pool.watch_broken());
  std::move(other).Retire(Fence::Now());
}

TEST(BlockPoolTest, MisuseIsLoud) {
  BlockPool pool(3);
  EXPECT_THROW(BlockPool(1), Broken);
  EXPECT_THROW((void)pool.Share(1), Broken);
  EXPECT_THROW(pool.Keep(1), Broken);
  EXPECT_THROW(pool.Forget(1), Broken);
  EXPECT_THROW(BlockLease().Retire(Fence::Now()), Broken);
}

TEST(BlockLeaseTest, MovesLeaveNothingBehind) {
  BlockPool pool(3);
  BlockLease first = pool.Take().lease;
  BlockLease second(std::move(first));
  EXPECT_EQ(first.id(), kNoBlock);  // NOLINT: the moved-from state is the contract
  BlockLease& alias = second;
  second = std::move(alias);
  EXPECT_EQ(second.id(), 1) << "self-move keeps the share";
  BlockLease third;
  third = std::move(second);
  EXPECT_EQ(pool.shares(1), 1);
  std::move(third).Retire(Fence::Now());
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockLeaseDeathTest, DroppingOrOverwritingAShareEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        BlockPool pool(3);
        const BlockLease lease = pool.Take().lease;
      },
      "block 1 was dropped without Retire");
  EXPECT_DEATH(
      {
        BlockPool pool(3);
        BlockLease first = pool.Take().lease;
        first = pool.Take().lease;
      },
      "block 1 was dropped without Retire");
}

// Random use against counts that are kept by hand; the audit does the rest.
TEST(BlockPoolTest, RandomUseKeepsTheBooks) {
  std::mt19937 random(1);
  BlockPool pool(20);
  std::vector<BlockLease> leases;
  StepId step = 1;
  StepId committed = 0;
  TicketId opened = 0;
  std::vector<TicketId> open;
  for (int i = 0; i < 20'000; ++i) {
    switch (random() % 8) {
      case 0:
      case 1:
        if (pool.available() > 0) leases.push_back(pool.Take().lease);
        break;
      case 2:
        if (!leases.empty()) pool.Keep(leases[random() % leases.size()].id());
        break;
      case 3: {
        const BlockId id = static_cast<BlockId>(1 + random() % 19);
        if (pool.place(id) == Place::kHeld || pool.kept(id)) leases.push_back(pool.Share(id));
        break;
      }
      case 4:
        if (!leases.empty()) {
          std::swap(leases[random() % leases.size()], leases.back());
          Fence fence = Fence::AfterStep(step - random() % 2);
          if (!open.empty() && random() % 2 == 0) fence.ticket = open[random() % open.size()];
          std::move(leases.back()).Retire(fence);
          leases.pop_back();
        }
        break;
      case 5:
        pool.Open(Gate::Of(++opened));
        open.push_back(opened);
        break;
      case 6:
        if (open.empty()) break;
        std::swap(open[random() % open.size()], open.back());
        if (random() % 4 == 0) {
          pool.Lose(Gate::Of(open.back()));
        } else {
          pool.Pass(Gate::Of(open.back()));
          open.pop_back();
        }
        break;
      default:
        committed = std::min(step, committed + random() % 2);
        pool.Settle(committed);
        step = std::max(step, committed + 1 + random() % 2);
    }
    pool.Audit();
    std::int32_t shares = 0;
    for (BlockId id = 1; id < 20; ++id) shares += pool.shares(id);
    ASSERT_EQ(shares, static_cast<std::int32_t>(leases.size()));
  }
  for (BlockLease& lease : leases) std::move(lease).Retire(Fence::Now());
  pool.Settle(step + 1);
  for (const TicketId ticket : open) pool.Pass(Gate::Of(ticket));
  EXPECT_EQ(pool.num_quarantined(), 0);
  EXPECT_EQ(pool.available(), pool.usable());
}

}  // namespace
}  // namespace tokenspeed
