#include "scheduler.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "small.h"

namespace tokenspeed {
namespace {

std::vector<Token> Prompt(std::size_t length, Token from = 0) {
  std::vector<Token> tokens(length);
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

SubmitResult Submit(Scheduler& scheduler, RequestId id, const std::vector<Token>& prompt,
                    std::int32_t max_tokens, const std::vector<Token>& stops = {}) {
  return scheduler.Submit(
      {.id = id, .tokens = prompt, .max_tokens = max_tokens, .stop_token_ids = stops});
}

Deltas CommitAll(Scheduler& scheduler, const Step& step, Token token = 99) {
  return scheduler.Commit(step.id,
                          std::vector<Token>(static_cast<std::size_t>(step.num_samples), token));
}

TEST(SchedulerTest, ChunksAPromptThenDecodes) {
  Scheduler scheduler(Small());
  ASSERT_EQ(Submit(scheduler, 1, Prompt(20), 2), SubmitResult::kAccepted);
  auto step = scheduler.MakeStep(0);
  EXPECT_EQ(step->query_lens, (std::vector<std::int32_t>{16}));
  EXPECT_EQ(step->num_samples, 0);
  EXPECT_EQ(step->num_decode_rows, 0);
  EXPECT_TRUE(CommitAll(scheduler, *step).request_ids.empty());
  step = scheduler.MakeStep(0);
  EXPECT_EQ(step->tokens, Prompt(4, 16));
  EXPECT_EQ(step->context_lens[0], 16);
  EXPECT_EQ(step->admitted[0], 0);
  CommitAll(scheduler, *step, 70);
  step = scheduler.MakeStep(0);
  EXPECT_EQ(step->num_decode_rows, 1);
  EXPECT_EQ(step->tokens, (std::vector<Token>{70}));
  const Deltas deltas = CommitAll(scheduler, *step, 71);
  EXPECT_EQ(deltas.tokens, (std::vector<Token>{71}));
  EXPECT_EQ(deltas.finish[0], static_cast<std::uint8_t>(Finish::kLength));
  EXPECT_EQ(scheduler.MakeStep(0), nullptr);
  scheduler.Audit();
}

TEST(SchedulerTest, WhoGoesOnFromAnEndedRequestCopiesItsTail) {
  Config config = Small();
  config.min_tail_tokens = 1;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(6), 1);
  CommitAll(scheduler, *scheduler.MakeStep(0));
  Submit(scheduler, 2, Prompt(9), 1);
  auto step = scheduler.MakeStep(0);
  EXPECT_EQ(step->context_lens, (std::vector<std::int32_t>{6}));
  ASSERT_EQ(step->copies.size(), 1u);
  EXPECT_EQ(step->copies[0].source, 2);
  EXPECT_EQ(step->copies[0].destination, scheduler.tables().Row(step->slots[0])[1]);
  EXPECT_EQ(step->copies[0].tokens, 2);
  EXPECT_EQ(scheduler.GetStats().blocks_cached, 0) << "the source is kept until the commit";
  CommitAll(scheduler, *step);
  EXPECT_EQ(scheduler.GetStats().blocks_cached, 4) << "two whole ones, two tails";
  scheduler.Audit();
}

// Beside a decode, 4 blocks are left: the tail's, and 3 that the prompt and its neighbour need.
TEST(SchedulerTest, WithoutTheBlockOfItsTailAPromptMayBeTooLongForTheStep) {
  for (const std::int32_t mixed : {10, 12}) {
    Config config = Small();
    config.min_tail_tokens = 1;
    config.num_blocks = 6;
    config.chunked_prefill = false;
    config.max_mixed_tokens = mixed;
    Scheduler scheduler(config);
    Submit(scheduler, 1, Prompt(3), 1);
    CommitAll(scheduler, *scheduler.MakeStep(0));
    Submit(scheduler, 2, Prompt(2, 50), 4);
    CommitAll(scheduler, *scheduler.MakeStep(0));
    Submit(scheduler, 3, Prompt(12), 1);
    const auto step = scheduler.MakeStep(0);
    EXPECT_TRUE(step->copies.empty());
    if (mixed < 12) {
      EXPECT_EQ(step->request_ids, (std::vector<RequestId>{2})) << "9 would fit, 12 do not";
    } else {
      EXPECT_EQ(step->query_lens, (std::vector<std::int32_t>{1, 12}));
    }
    scheduler.Audit();
  }
}

TEST(SchedulerTest, NobodyIsAdmittedWhileAPromptIsUnfinished) {
  Scheduler scheduler(Small());
  Submit(scheduler, 1, Prompt(20), 2);
  Submit(scheduler, 2, Prompt(4, 50), 2);
  EXPECT_EQ(scheduler.MakeStep(0)->request_ids, (std::vector<RequestId>{1}));
}

TEST(SchedulerTest, AStopFoundLateDropsTheRowThatIsAlreadyOut) {
  Config config = Small();
  config.in_flight_depth = 1;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(5), 9, {42});
  const auto first = scheduler.MakeStep(0);
  const auto second = scheduler.MakeStep(0);
  EXPECT_EQ(second->tokens, (std::vector<Token>{kTokenOnDevice}));
  EXPECT_EQ(CommitAll(scheduler, *first, 42).finish[0], static_cast<std::uint8_t>(Finish::kStop));
  EXPECT_GT(scheduler.GetStats().blocks_used, 0) << "the second step still writes";
  EXPECT_EQ(scheduler.GetStats().slots_used, 1);
  scheduler.Audit();
  EXPECT_EQ(Submit(scheduler, 1, Prompt(5), 9), SubmitResult::kAccepted) << "the id is free";
  EXPECT_TRUE(CommitAll(scheduler, *second).request_ids.empty()) << "no result for the new life";
  EXPECT_EQ(scheduler.GetStats().blocks_used, 0);
  scheduler.Audit();
}

TEST(SchedulerTest, TheLastTokenIsKnownByArithmeticSoNoRowIsWasted) {
  Config config = Small();
  config.in_flight_depth = 1;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(5), 1);
  const auto step = scheduler.MakeStep(0);
  EXPECT_EQ(scheduler.MakeStep(0), nullptr);
  EXPECT_EQ(CommitAll(scheduler, *step).finish[0], static_cast<std::uint8_t>(Finish::kLength));
}

TEST(SchedulerTest, AbortWorksInEveryState) {
  Config config = Small();
  config.in_flight_depth = 1;
  config.num_blocks = 8;
  Scheduler scheduler(config);
  EXPECT_FALSE(scheduler.Abort(1));
  // Waiting.
  Submit(scheduler, 1, Prompt(5), 4);
  EXPECT_TRUE(scheduler.Abort(1));
  EXPECT_EQ(scheduler.MakeStep(0), nullptr);
  // Prefilling, in flight.
  Submit(scheduler, 1, Prompt(20), 4);
  auto step = scheduler.MakeStep(0);
  EXPECT_TRUE(scheduler.Abort(1));
  EXPECT_TRUE(CommitAll(scheduler, *step).request_ids.empty());
  // Decoding, with two results in flight.
  Submit(scheduler, 1, Prompt(3), 9);
  step = scheduler.MakeStep(0);
  const auto second = scheduler.MakeStep(0);
  EXPECT_TRUE(scheduler.Abort(1));
  scheduler.Audit();
  EXPECT_TRUE(CommitAll(scheduler, *step).request_ids.empty());
  EXPECT_TRUE(CommitAll(scheduler, *second).request_ids.empty());
  // Finishing.
  Submit(scheduler, 1, Prompt(3), 1);
  step = scheduler.MakeStep(0);
  EXPECT_TRUE(scheduler.Abort(1));
  EXPECT_TRUE(CommitAll(scheduler, *step).request_ids.empty());
  scheduler.Audit();
  EXPECT_EQ(scheduler.GetStats().aborted, 4u);
  EXPECT_EQ(scheduler.GetStats().blocks_used, 0);
}

// Two requests that grow on seven blocks of 4: when the first needs the eighth, the second loses
// its own while a result of it is in flight, still gets that token, and only then queues again.
TEST(SchedulerTest, ARetractedRequestGetsTheResultThatWasInFlight) {
  Config config = Small();
  config.in_flight_depth = 1;
  config.num_blocks = 8;
  config.max_step_tokens = 32;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(8), 12);
  Submit(scheduler, 2, Prompt(9, 20), 12);
  std::vector<std::shared_ptr<const Step>> flights;
  while (scheduler.GetStats().preemptions == 0) {
    const auto step = scheduler.MakeStep(0);
    scheduler.Audit();
    if (step == nullptr) break;  // the first waits for what the second gave up
    flights.push_back(step);
    if (flights.size() < 2) continue;
    CommitAll(scheduler, *flights.front());
    flights.erase(flights.begin());
  }
  ASSERT_EQ(flights.size(), 1u);
  ASSERT_EQ(scheduler.GetStats().preemptions, 1u);
  EXPECT_EQ(scheduler.GetStats().waiting, 1);
  const auto known = scheduler.Tokens(2).size();
  EXPECT_EQ(CommitAll(scheduler, *flights[0]).request_ids, (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(scheduler.Tokens(2).size(), known + 1);
  scheduler.Audit();
  EXPECT_TRUE(scheduler.Abort(2));
  scheduler.Audit();
}

// Six blocks, two for each of three. In step 7 the first gets its last token, and the others need a
// third block: they sit that step out, since the two of the first are certain to come.
TEST(SchedulerTest, NobodyIsPreemptedForBlocksThatASingleEndBrings) {
  Config config = Small();
  config.num_blocks = 7;
  config.prefix_cache = false;
  Scheduler scheduler(config);
  Submit(scheduler, 1, Prompt(2), 7);
  Submit(scheduler, 2, Prompt(3), 9);
  Submit(scheduler, 3, Prompt(3), 9);
  for (int i = 1; i < 7; ++i) CommitAll(scheduler, *scheduler.MakeStep(0));
  EXPECT_EQ(scheduler.GetStats().blocks_free, 0);
  const auto step = scheduler.MakeStep(0);
  EXPECT_EQ(step->request_ids, (std::vector<RequestId>{1}));
  CommitAll(scheduler, *step);
  EXPECT_EQ(scheduler.MakeStep(0)->request_ids, (std::vector<RequestId>{2, 3}));
  EXPECT_EQ(scheduler.GetStats().preemptions, 0u);
}

TEST(SchedulerTest, MisuseIsRefusedByName) {
  Config config = Small();
  config.max_step_tokens = 2;
  EXPECT_THROW(Scheduler{config}, std::invalid_argument);
  Scheduler scheduler(Small());
  EXPECT_THROW(Submit(scheduler, 1, {-1}, 1), std::invalid_argument);
  EXPECT_THROW(scheduler.Commit(1, {}), std::invalid_argument);
  EXPECT_THROW((void)scheduler.Tokens(1), std::invalid_argument);
  Submit(scheduler, 1, Prompt(3), 3);
  (void)scheduler.MakeStep(0);
  EXPECT_THROW((void)scheduler.MakeStep(0), std::logic_error);
}

TEST(SchedulerTest, AStepOutlivesTheScheduler) {
  std::shared_ptr<const Step> step;
  {
    Scheduler scheduler(Small());
    Submit(scheduler, 1, Prompt(3), 3);
    step = scheduler.MakeStep(0);
  }
  EXPECT_EQ(step->tokens, Prompt(3));
}

// The closed loop without Python, so that sanitizers see it: random calls, the audit after each.
class RandomLoop : public testing::TestWithParam<int> {};

TEST_P(RandomLoop, KeepsEveryInvariantAndDrains) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  Config config = Small();
  config.num_blocks = static_cast<std::int32_t>(11 + random() % 20);
  config.block_size = static_cast<std::int32_t>(1 + random() % 5);
  config.max_running = static_cast<std::int32_t>(1 + random() % 6);
  config.max_step_tokens = static_cast<std::int32_t>(6 + random() % 20);
  config.prefix_cache = random() % 4 != 0;
  config.chunked_prefill = random() % 4 != 0;
  config.in_flight_depth = GetParam() % 2;
  Scheduler scheduler(config);
  std::vector<std::shared_ptr<const Step>> flights;
  std::set<RequestId> live;
  std::uint64_t accepted = 0;
  std::uint64_t ended = 0;
  const auto commit = [&] {
    const auto step = flights.front();
    flights.erase(flights.begin());
    std::vector<Token> tokens(static_cast<std::size_t>(step->num_samples));
    for (Token& token : tokens) token = static_cast<Token>(random() % 40);
    const Deltas deltas = scheduler.Commit(step->id, tokens);
    for (std::size_t i = 0; i < deltas.finish.size(); ++i) {
      ASSERT_TRUE(live.contains(deltas.request_ids[i]));
      if (deltas.finish[i] == 0) continue;
      live.erase(deltas.request_ids[i]);
      ++ended;
    }
  };
  for (int turn = 0; turn < 1500; ++turn) {
    const bool draining = turn > 1000;
    if (!draining && random() % 2 == 0) {
      const RequestId id = random() % 12;
      const auto prompt = Prompt(1 + random() % 25, static_cast<Token>(random() % 2 * 3));
      const std::vector<Token> stops{static_cast<Token>(random() % 40)};
      const bool fresh = !live.contains(id);
      const auto result =
          Submit(scheduler, id, prompt, static_cast<std::int32_t>(random() % 15), stops);
      ASSERT_EQ(result == SubmitResult::kDuplicate, !fresh);
      if (result == SubmitResult::kAccepted) {
        live.insert(id);
        ++accepted;
      }
    }
    if (!draining && random() % 16 == 0) {
      const RequestId id = random() % 12;
      ASSERT_EQ(scheduler.Abort(id), live.erase(id) == 1);
    }
    const auto step = scheduler.MakeStep(turn);
    scheduler.Audit();
    if (step != nullptr) flights.push_back(step);
    ASSERT_TRUE(step != nullptr || !flights.empty() || live.empty()) << "stalled";
    while (!flights.empty() &&
           (step == nullptr || static_cast<int>(flights.size()) > config.in_flight_depth)) {
      commit();
      scheduler.Audit();
      if (step == nullptr) break;
    }
  }
  while (!flights.empty()) commit();
  const Stats stats = scheduler.GetStats();
  EXPECT_TRUE(live.empty());
  EXPECT_EQ(stats.finished + stats.aborted, accepted);
  EXPECT_EQ(stats.finished, ended);
  EXPECT_EQ(stats.blocks_used + stats.slots_used, 0);
  scheduler.ResetPrefixCache();
  EXPECT_EQ(scheduler.GetStats().blocks_free, config.num_blocks - 1);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLoop, testing::Range(0, 24));

}  // namespace
}  // namespace tokenspeed
