// What a disk is asked, what goes there, and how its host blocks are counted meanwhile.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "reports.h"
#include "scheduler.h"
#include "small.h"

namespace tokenspeed {
namespace {

Config WithDisk() {
  Config config = Small();
  config.max_running = 2;
  config.num_host_blocks = 9;
  config.disk = true;
  config.layers_per_transfer = 4;  // of what goes to a peer: nothing does here
  return config;
}

class TiersTest : public testing::Test {
 protected:
  TiersTest() : scheduler_(WithDisk()) {
    std::vector<Token> prompt(9);
    std::iota(prompt.begin(), prompt.end(), 0);
    EXPECT_EQ(scheduler_.Submit({.id = 1, .tokens = prompt, .max_tokens = 1, .stop_token_ids = {}}),
              SubmitResult::kAccepted);
  }

  // The next step, committed; it carries one transfer between these two.
  TicketId Transfer(Tier source, Tier destination, std::size_t blocks) {
    const auto step = scheduler_.MakeStep(0);
    EXPECT_TRUE(step != nullptr && step->transfers.tickets.size() == 1);
    EXPECT_EQ(step->transfers.sources[0], static_cast<std::uint8_t>(source));
    EXPECT_EQ(step->transfers.destinations[0], static_cast<std::uint8_t>(destination));
    EXPECT_EQ(step->transfers.moves.size(), blocks);
    EXPECT_EQ(step->transfers.layers[0], 0) << "all at once";
    scheduler_.Commit(step->id, std::vector<Token>(Index(step->num_samples), 99));
    return step->transfers.tickets[0];
  }

  void Done(TicketId ticket, std::vector<std::uint8_t> results) {
    scheduler_.ApplyReports(std::vector<Report>{report::TransferDone{ticket, std::move(results)}},
                            0);
    scheduler_.Audit();
  }

  Scheduler scheduler_;
};

TEST_F(TiersTest, AnAnswerHasAWordForEveryBlockAndNoMore) {
  Done(Transfer(Tier::kDisk, Tier::kNone, 2), {1, 1});
  Done(Transfer(Tier::kDisk, Tier::kHost, 2), {1, 1});
  EXPECT_EQ(scheduler_.GetStats().host_blocks_cached, 2) << "found as soon as they are there";
  Done(Transfer(Tier::kHost, Tier::kDevice, 2), {1, 1});
  const auto step = scheduler_.MakeStep(0);
  EXPECT_EQ(step->context_lens, (std::vector<std::int32_t>{8}));
  const Stats stats = scheduler_.GetStats();
  EXPECT_EQ(stats.host_blocks_loaded, 2u);
  EXPECT_EQ(stats.transfers_failed, 0u);
  EXPECT_EQ(stats.prompt_tokens, 9u);
  EXPECT_EQ(stats.cached_prompt_tokens, 8u);
}

TEST_F(TiersTest, ATransferWithABlockThatFailedIsCounted) {
  Done(Transfer(Tier::kDisk, Tier::kNone, 2), {1, 1});
  Done(Transfer(Tier::kDisk, Tier::kHost, 2), {1, 0});
  EXPECT_EQ(scheduler_.GetStats().transfers_failed, 1u);
  Done(Transfer(Tier::kHost, Tier::kDevice, 1), {0});
  EXPECT_EQ(scheduler_.GetStats().transfers_failed, 2u);
  EXPECT_EQ(scheduler_.MakeStep(0)->context_lens, (std::vector<std::int32_t>{0}));
}

TEST_F(TiersTest, HostBlocksThatAPutReadsAreUsed) {
  Done(Transfer(Tier::kDisk, Tier::kNone, 2), {0, 0});
  EXPECT_EQ(scheduler_.GetStats().transfers_failed, 0u) << "no is an answer";
  const auto step = scheduler_.MakeStep(0);
  scheduler_.Commit(step->id, std::vector<Token>{99});
  Done(Transfer(Tier::kDevice, Tier::kHost, 2), {1, 1});
  EXPECT_EQ(scheduler_.GetStats().host_blocks_cached, 2);
  const TicketId put = Transfer(Tier::kHost, Tier::kDisk, 2);
  const Stats during = scheduler_.GetStats();
  EXPECT_EQ(during.host_blocks_used, 2) << "held by nobody, and not to be had";
  EXPECT_EQ(during.host_blocks_cached, 0);
  EXPECT_EQ(during.host_blocks_free, 6);
  Done(put, {1, 1});
  EXPECT_EQ(scheduler_.GetStats().host_blocks_used, 0);
  EXPECT_EQ(scheduler_.GetStats().host_blocks_cached, 2);
}

}  // namespace
}  // namespace tokenspeed
