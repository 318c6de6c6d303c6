#include "config.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "scheduler.h"

namespace tokenspeed {
namespace {

Config Of(std::int32_t blocks, std::vector<CacheGroup> groups) {
  Config config{.num_blocks = blocks,
                .block_size = 4,
                .max_running = 2,
                .max_step_tokens = 64,
                .max_model_len = 50,
                .digest_key = {1, 2}};
  config.groups = std::move(groups);
  return config;
}

TEST(ConfigTest, TheLongestRequestIsWhatThePoolAndTheModelAllow) {
  const CacheGroup state{.kind = CacheGroup::Kind::kState};
  EXPECT_EQ(Of(9, {{}}).max_request_tokens(), 32);
  EXPECT_EQ(Of(99, {{}}).max_request_tokens(), 50) << "the model's end";
  EXPECT_EQ(Of(9, {{}, {}}).max_request_tokens(), 16);
  EXPECT_EQ(Of(9, {{}, state}).max_request_tokens(), 24);
  EXPECT_EQ(Of(3, {state}).max_request_tokens(), 50) << "a state does not grow";
  EXPECT_EQ(Of(3, {{}, state}).max_request_tokens(), 0);
}

TEST(ConfigTest, DigestsNameWhatIsCached) {
  Scheduler scheduler(Of(20, {{}}));
  std::vector<Token> prompt(10);
  std::iota(prompt.begin(), prompt.end(), 0);
  EXPECT_TRUE(scheduler.CachedDigests().empty());
  ASSERT_EQ(scheduler.Submit({.id = 1, .tokens = prompt, .max_tokens = 1, .stop_token_ids = {}}),
            SubmitResult::kAccepted);
  ASSERT_NE(scheduler.MakeStep(0), nullptr);
  EXPECT_EQ(scheduler.CachedDigests(), scheduler.DigestsOf(prompt, ""));
  EXPECT_NE(scheduler.CachedDigests(), scheduler.DigestsOf(prompt, "salt"));
}

}  // namespace
}  // namespace tokenspeed
