// What a peer may say about a hand-over, and what is refused by name.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "reports.h"
#include "scheduler.h"

namespace tokenspeed {
namespace {

constexpr PeerId kPeer = 7;

Config Prefilling() {
  Config config{.num_blocks = 17,
                .block_size = 4,
                .max_running = 3,
                .max_step_tokens = 16,
                .max_model_len = 40,
                .prefix_cache = true,
                .chunked_prefill = true,
                .in_flight_depth = 0,
                .digest_key = {1, 2}};
  config.role = Role::kPrefill;
  return config;
}

// A prompt of 10 tokens, of which the peer has one block: it wants the other two.
report::PeerReady Fitting() {
  return {.peer = kPeer,
          .prefix_len = 4,
          .prompt_len = 10,
          .blocks = {{.group = 0, .column = 1, .destination = 5},
                     {.group = 0, .column = 2, .destination = 6}}};
}

struct Fault {
  const char* said;
  std::function<void(report::PeerReady&)> plant;
};

class RolesTest : public testing::TestWithParam<Fault> {
 protected:
  RolesTest() : scheduler_(Prefilling()) {
    std::vector<Token> prompt(10);
    std::iota(prompt.begin(), prompt.end(), 0);
    EXPECT_EQ(scheduler_.Submit({.id = 1,
                                 .tokens = prompt,
                                 .max_tokens = 4,
                                 .stop_token_ids = {},
                                 .peer = kPeer}),
              SubmitResult::kAccepted);
  }

  void Say(const report::PeerReady& ready) {
    scheduler_.ApplyReports(std::vector<Report>{ready}, 0);
    scheduler_.Audit();
  }

  Scheduler scheduler_;
};

TEST_P(RolesTest, AManifestThatDoesNotFitIsRefusedAndChangesNothing) {
  report::PeerReady wrong = Fitting();
  GetParam().plant(wrong);
  try {
    Say(wrong);
    FAIL() << "taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(GetParam().said), std::string::npos) << error.what();
  }
  EXPECT_EQ(scheduler_.MakeStep(0), nullptr) << "it waits for its peer still";
  Say(Fitting());
  const auto step = scheduler_.MakeStep(0);
  ASSERT_NE(step, nullptr);
  EXPECT_EQ(step->tokens.size(), 10U) << "the peer's block is not in this cache";
}

INSTANTIATE_TEST_SUITE_P(
    Faults, RolesTest,
    testing::Values(
        Fault{"has a prompt of 11 tokens, not 10", [](auto& ready) { ready.prompt_len = 11; }},
        Fault{"has a prefix of 3 tokens", [](auto& ready) { ready.prefix_len = 3; }},
        Fault{"has a prefix of -4 tokens", [](auto& ready) { ready.prefix_len = -4; }},
        Fault{"has a prefix of 12 tokens", [](auto& ready) { ready.prefix_len = 12; }},
        Fault{"wants column 3 of group 0", [](auto& ready) { ready.blocks[0].column = 3; }},
        Fault{"wants column 0 of group 0", [](auto& ready) { ready.blocks[0].column = 0; }},
        Fault{"wants column 1 of group 1", [](auto& ready) { ready.blocks[0].group = 1; }},
        Fault{"of group 0 in block 0", [](auto& ready) { ready.blocks[1].destination = 0; }},
        Fault{"wants column 2 of group 0", [](auto& ready) { ready.blocks[0].column = 2; }},
        Fault{"wants 1 blocks where 2 are needed", [](auto& ready) { ready.blocks.pop_back(); }}));

TEST_F(RolesTest, AManifestIsTakenOnce) {
  Say(Fitting());
  EXPECT_THROW(Say(Fitting()), std::invalid_argument);
}

TEST_F(RolesTest, WhatAnUnknownPeerSaysIsDropped) {
  report::PeerReady stranger = Fitting();
  stranger.peer = kPeer + 1;
  Say(stranger);
  EXPECT_EQ(scheduler_.MakeStep(0), nullptr);
}

}  // namespace
}  // namespace tokenspeed
