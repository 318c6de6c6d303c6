#include "policy.h"

#include <gtest/gtest.h>

#include <algorithm>

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

}  // namespace
}  // namespace tokenspeed
