// Requests of models with several cache groups, through the scheduler's own calls.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "scheduler.h"
#include "small.h"

namespace tokenspeed {
namespace {

Config Of(std::vector<CacheGroup> groups) {
  Config config = Small();
  config.num_blocks = 33;
  config.max_running = 2;
  config.groups = std::move(groups);
  return config;
}

// A step with the tokens 0, 1, ... of one prompt, submitted before it.
std::shared_ptr<const Step> Serve(Scheduler& scheduler, RequestId id, std::size_t length,
                                  std::int32_t max_tokens) {
  std::vector<Token> prompt(length);
  std::iota(prompt.begin(), prompt.end(), 0);
  EXPECT_EQ(scheduler.Submit({.id = id, .tokens = prompt, .max_tokens = max_tokens,
                              .stop_token_ids = {}}),
            SubmitResult::kAccepted);
  return scheduler.MakeStep(0);
}

void Commit(Scheduler& scheduler, const Step& step) {
  scheduler.Commit(step.id, std::vector<Token>(Index(step.num_samples), 99));
  scheduler.Audit();
}

// The state after 4 tokens is kept for others: the row behind it reads that block and writes
// another, which the row after that goes on from in place.
TEST(GroupsTest, APublishedStateIsReadAndNoLongerWritten) {
  for (const bool first : {true, false}) {
    const CacheGroup state{.kind = CacheGroup::Kind::kState};
    Scheduler scheduler(Of(first ? std::vector{state, CacheGroup{}}
                                 : std::vector{CacheGroup{}, state}));
    const auto row = [&] {
      const auto entries = scheduler.tables().Row(0, first ? 0 : 1);
      return std::vector<BlockId>(entries.begin(), entries.end());
    };
    auto step = Serve(scheduler, 1, 6, 3);
    EXPECT_EQ(step->query_lens, (std::vector<std::int32_t>{4}));
    const BlockId kept = row()[1];
    EXPECT_EQ(row()[0], kNullBlock) << "there is none to read";
    Commit(scheduler, *step);
    step = scheduler.MakeStep(0);
    EXPECT_EQ(row()[0], kept);
    const BlockId own = row()[1];
    EXPECT_TRUE(own != kept && own != kNullBlock);
    Commit(scheduler, *step);
    step = scheduler.MakeStep(0);
    EXPECT_EQ(row(), (std::vector<BlockId>{own, own}));
    Commit(scheduler, *step);
  }
}

TEST(GroupsTest, ATailIsFoundWhereEveryGroupHasIt) {
  Config config = Of({{}, {}, {.kind = CacheGroup::Kind::kWindow, .window = 6}});
  config.min_tail_tokens = 1;
  Scheduler scheduler(config);
  Commit(scheduler, *Serve(scheduler, 1, 6, 1));
  const auto step = Serve(scheduler, 2, 9, 1);
  EXPECT_EQ(step->context_lens, (std::vector<std::int32_t>{6}));
  ASSERT_EQ(step->copies.size(), 3u);
  for (std::int32_t g = 0; g < 3; ++g) {
    EXPECT_EQ(step->copies[Index(g)].tokens, 2);
    EXPECT_EQ(step->copies[Index(g)].destination, scheduler.tables().Row(step->slots[0], g)[1]);
  }
  Commit(scheduler, *step);
}

}  // namespace
}  // namespace tokenspeed
