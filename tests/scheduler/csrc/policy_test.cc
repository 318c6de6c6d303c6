#include "policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>
#include <random>

namespace tokenspeed {
namespace {

TEST(RankTest, IsFirstComeFirstServedWithinAClass) {
  EXPECT_LT(RankOf(1.0, 0, 30, 1), RankOf(2.0, 0, 30, 2));
  EXPECT_LT(RankOf(1.0, 0, 30, 1), RankOf(1.0, 0, 30, 2)) << "at the same instant, in order";
}

TEST(RankTest, AClassIsWorthItsSecondsAndNoMore) {
  const Rank low = RankOf(0, 0, 30, 1);
  EXPECT_LT(RankOf(29, 1, 30, 2), low);
  EXPECT_LT(low, RankOf(31, 1, 30, 2));
  EXPECT_LT(RankOf(59, 2, 30, 2), low);
  EXPECT_LT(low, RankOf(0, -1, 30, 2));
}

TEST(ChunkTest, FillsTheBudgetWhenChunked) {
  EXPECT_EQ(ChunkOf(10, 4, 16, true), 4);
  EXPECT_EQ(ChunkOf(3, 4, 16, true), 3);
}

TEST(ChunkTest, IsAllOrNothingWhenNotChunked) {
  EXPECT_EQ(ChunkOf(10, 9, 16, false), 0);
  EXPECT_EQ(ChunkOf(10, 10, 16, false), 10);
  EXPECT_EQ(ChunkOf(17, 9, 16, false), 9) << "what no step can hold is chunked";
}

TEST(ChunkTest, NeverStallsAWholeStep) {
  for (int step = 1; step < 20; ++step) {
    for (int remaining = 1; remaining < 60; ++remaining) {
      for (const bool chunked : {true, false}) {
        EXPECT_GT(ChunkOf(remaining, step, step, chunked), 0);
        for (int budget = 1; budget <= step; ++budget) {
          const int chunk = ChunkOf(remaining, budget, step, chunked);
          EXPECT_GE(chunk, 0);
          EXPECT_LE(chunk, std::min(remaining, budget));
        }
      }
    }
  }
}

TEST(AdmitTest, KeepsABlockBackPerRunningRequest) {
  EXPECT_TRUE(MayAdmit({.needed = 5, .available = 8, .running = 3}));
  EXPECT_FALSE(MayAdmit({.needed = 6, .available = 8, .running = 3}));
  EXPECT_TRUE(MayAdmit({.needed = 8, .available = 8, .running = 0}));
}

TEST(PolicyTest, AReplicaIsChosenByPrefixWithinALoadBound) {
  const std::vector<Replica> replicas{
      {.cached = 0, .load = 100}, {.cached = 640, .load = 900}, {.cached = 128, .load = 300}};
  EXPECT_EQ(ChooseReplica(replicas, 0), 0);
  EXPECT_EQ(ChooseReplica(replicas, 200), 2);
  EXPECT_EQ(ChooseReplica(replicas, 799), 2);
  EXPECT_EQ(ChooseReplica(replicas, 800), 1);
  EXPECT_EQ(ChooseReplica({}, 10), -1);
  const std::vector<Replica> equal{{.cached = 5, .load = 7}, {.cached = 5, .load = 6},
                                   {.cached = 5, .load = 6}};
  EXPECT_EQ(ChooseReplica(equal, 10), 1) << "the least loaded, then the first";
}

// Whatever is cached, no replica is chosen whose load exceeds the bound, and cache never loses
// to less cache within it.
TEST(PolicyTest, TheLoadBoundHoldsForEveryCache) {
  std::mt19937 random(3);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<Replica> replicas(1 + random() % 8);
    std::int64_t least = 1'000;
    for (Replica& replica : replicas) {
      replica = {.cached = static_cast<std::int64_t>(random() % 6),
                 .load = static_cast<std::int64_t>(random() % 50)};
      least = std::min(least, replica.load);
    }
    const auto slack = static_cast<std::int64_t>(random() % 20);
    const Replica chosen =
        replicas[static_cast<std::size_t>(ChooseReplica(replicas, slack))];
    ASSERT_LE(chosen.load, least + slack);
    for (const Replica& other : replicas) {
      ASSERT_TRUE(other.load > least + slack || other.cached <= chosen.cached);
    }
  }
}

// Chunks of models with states: never empty, never past the budget, and cut only at blocks.
TEST(PolicyTest, AStopIsAtABlockOrNowhere) {
  for (std::int32_t block = 1; block < 6; ++block) {
    for (std::int32_t known = 1; known < 20; ++known) {
      for (std::int32_t scheduled = 0; scheduled < known; ++scheduled) {
        for (std::int32_t chunk = 1; scheduled + chunk <= known; ++chunk) {
          const std::int32_t stop = StopAtBlock(scheduled, chunk, known, block);
          ASSERT_GE(stop, 1);
          ASSERT_LE(stop, chunk);
          ASSERT_TRUE(stop == chunk || (scheduled + stop) % block == 0);
          const std::int32_t hit = (known - 1) / block * block;  // what a repetition can find
          ASSERT_FALSE(scheduled < hit && hit < scheduled + stop) << "it is not run over";
        }
      }
    }
  }
}

}  // namespace
}  // namespace tokenspeed
