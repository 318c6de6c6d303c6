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

TEST(AdmitTest, KeepsABlockBackPerRunningRequestAndWhatWasPromised) {
  EXPECT_TRUE(MayAdmit({.available = 3, .growing = 3}));
  EXPECT_FALSE(MayAdmit({.available = 2, .growing = 3}));
  EXPECT_TRUE(MayAdmit({.available = 0, .growing = 0}));
  EXPECT_TRUE(MayAdmit({.available = 9, .growing = 3, .promised = 9}));
  EXPECT_FALSE(MayAdmit({.available = 8, .growing = 3, .promised = 9}));
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

// A lead moves a request forward within its class and never past its bound: whoever arrives more
// than the longest lead later does not overtake, however much of it is cached. So a request waits
// behind finitely many.
TEST(RankTest, ACachedPromptLeadsByItsShareAndNoMore) {
  EXPECT_EQ(LeadOf(0, 100, 8), 0);
  EXPECT_EQ(LeadOf(100, 100, 8), 8);
  EXPECT_EQ(LeadOf(25, 100, 8), 2);
  std::mt19937 random(11);
  for (int round = 0; round < 2'000; ++round) {
    const double longest = static_cast<double>(random() % 20);
    const auto prompt = static_cast<std::int64_t>(1 + random() % 50);
    const auto cached = static_cast<std::int64_t>(random()) % (prompt + 1);
    const double first = static_cast<double>(random() % 100);
    const double later = first + longest + 0.25 + static_cast<double>(random() % 100);
    const double lead = LeadOf(cached, prompt, longest);
    ASSERT_GE(lead, 0);
    ASSERT_LE(lead, longest);
    ASSERT_LT(RankOf(first, 0, 30, 1), RankOf(later, 0, 30, 2, lead));
    ASSERT_LE(RankOf(first, 0, 30, 2, lead), RankOf(first, 0, 30, 2));
  }
}

TEST(MixTest, BoundsWhatADecodeWaitsForAndLetsPromptsGoOn) {
  const Mix mix{.decode_tokens = 3, .step_tokens = 16, .mixed_tokens = 5, .patience_steps = 2};
  EXPECT_EQ(PromptBudget(mix), 5);
  Mix alone = mix;
  alone.decode_tokens = 0;
  EXPECT_EQ(PromptBudget(alone), 16);
  for (int step = 1; step < 12; ++step) {
    for (int decodes = 0; decodes < step; ++decodes) {  // somebody is left to prefill
      for (int mixed = 1; mixed < 14; ++mixed) {
        const int budget = PromptBudget(
            {.decode_tokens = decodes, .step_tokens = step, .mixed_tokens = mixed});
        ASSERT_GT(budget, 0);
        ASSERT_LE(decodes + budget, step);
        ASSERT_TRUE(decodes == 0 || budget <= mixed);
        for (int prompt = 1; prompt < 20; ++prompt) {
          ASSERT_GT(ChunkOf(prompt, budget, step, true), 0);
        }
      }
    }
  }
}

// What prompts may take beside decodes: never less than a chunk nor more than the larger bound,
// never less after more full steps, and no more than a chunk until they have filled as many steps
// as a prompt may that keeps up.
TEST(MixTest, GrowsWithTheBacklogWithinItsBounds) {
  for (int mixed = 1; mixed < 9; ++mixed) {
    for (int most = 0; most < 40; ++most) {
      for (int steps = 1; steps < 5; ++steps) {
        int before = 0;
        for (int full = 0; full < 40; ++full) {
          const int budget = PromptBudget({.decode_tokens = 4, .step_tokens = 32,
                                           .mixed_tokens = mixed, .backlog_tokens = most,
                                           .full_steps = full, .backlog_steps = steps});
          ASSERT_GE(budget, std::max(before, mixed));
          ASSERT_LE(budget, std::min(28, std::max(mixed, most)));
          ASSERT_TRUE(full >= steps || budget == mixed);
          ASSERT_LE(budget, std::max(2 * before, mixed)) << "no leap";
          before = budget;
        }
        ASSERT_EQ(before, std::min(28, std::max(mixed, most))) << "a queue gets it all in the end";
      }
    }
  }
  Mix huge{.decode_tokens = 1, .step_tokens = 9, .mixed_tokens = 2'147'483'647,
           .backlog_tokens = 2'147'483'647, .full_steps = 2'147'483'647};
  EXPECT_EQ(PromptBudget(huge), 8);
}

// The rule played out: a prompt that must not be cut beside decodes that never end. It goes within
// `patience` steps, and decodes sit out one step of patience + 1 at most.
TEST(MixTest, NeitherSideStarves) {
  for (int patience = 1; patience < 6; ++patience) {
    int starved = 0;
    int prompt_waits = 0;
    int since_pause = patience;
    for (int turn = 0; turn < 60; ++turn) {
      const bool alone =
          PromptsGoAlone({.starved_steps = starved, .patience_steps = patience});
      const Mix mix{.decode_tokens = alone ? 0 : 4, .step_tokens = 16, .mixed_tokens = 8};
      const bool went = ChunkOf(16, PromptBudget(mix), 16, false) > 0;
      ASSERT_EQ(went, alone);
      prompt_waits = went ? 0 : prompt_waits + 1;
      ASSERT_LE(prompt_waits, patience);
      if (alone) {
        ASSERT_GE(since_pause, patience);
        since_pause = 0;
      } else {
        ++since_pause;
      }
      starved = went ? 0 : starved + 1;
    }
  }
}

TEST(VictimTest, IsTheLastThatFreesSomething) {
  const auto of = [](std::uint64_t arrival, bool frees) {
    return Candidate{.rank = RankOf(0, 0, 30, arrival), .frees = frees};
  };
  EXPECT_EQ(ChooseVictim({}), -1);
  EXPECT_EQ(ChooseVictim(std::vector{of(1, true), of(2, true), of(3, false)}), 1);
  EXPECT_EQ(ChooseVictim(std::vector{of(1, false), of(2, false)}), 1) << "one after the other";
  std::mt19937 random(12);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<Candidate> candidates;
    for (std::uint64_t i = 0; i <= random() % 6; ++i) candidates.push_back(of(i, random() % 2));
    std::shuffle(candidates.begin(), candidates.end(), random);
    const Candidate chosen = candidates[static_cast<std::size_t>(ChooseVictim(candidates))];
    for (const Candidate& other : candidates) {
      ASSERT_GE(chosen.frees, other.frees);
      ASSERT_TRUE(chosen.frees != other.frees || chosen.rank >= other.rank);
    }
  }
}

TEST(RestoreTest, ReadsAnImageOnlyWhereItSavesComputing) {
  EXPECT_FALSE(RestoresImage(0, 0)) << "it was never computed";
  EXPECT_TRUE(RestoresImage(64, 0));
  EXPECT_TRUE(RestoresImage(65, 64)) << "the cache lacks one token of it";
  EXPECT_FALSE(RestoresImage(64, 64)) << "the cache has it all";
  EXPECT_FALSE(RestoresImage(64, 128)) << "somebody else went further";
  for (std::int32_t in_image = 0; in_image < 300; ++in_image) {
    for (std::int32_t cached = 0; cached < 300; ++cached) {
      // Whatever is chosen, what is left to compute is the least there is.
      const std::int32_t kept = RestoresImage(in_image, cached) ? in_image : cached;
      ASSERT_EQ(kept, std::max(in_image, cached));
    }
  }
}

TEST(WidthTest, IsWhatIsOfAnyUseAndFits) {
  EXPECT_EQ(WidthOf({.drafts = 3, .left = 9, .room = 9}), 4);
  EXPECT_EQ(WidthOf({.drafts = 3, .left = 2, .room = 9}), 2);
  EXPECT_EQ(WidthOf({.drafts = 3, .left = 0, .room = 9}), 0) << "all may be on its way";
  EXPECT_EQ(WidthOf({.drafts = 3, .left = 9, .room = 1}), 1);
  EXPECT_EQ(WidthOf({.drafts = 3, .left = 9, .to_block_end = 2, .room = 9}), 2);
  EXPECT_EQ(WidthOf({.drafts = 0, .left = 9, .to_block_end = 2, .room = 9}), 1);
}

}  // namespace
}  // namespace tokenspeed
