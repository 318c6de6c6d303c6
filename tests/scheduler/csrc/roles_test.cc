// What a peer may say about a hand-over, and what is refused by name.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "reports.h"
#include "scheduler.h"
#include "small.h"

namespace tokenspeed {
namespace {

constexpr PeerId kPeer = 7;

Config Prefilling() {
  Config config = Small();
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

// The other side: prompts of 10 tokens, three blocks each, that a peer computes.
class ReceivingTest : public testing::Test {
 protected:
  ReceivingTest() : scheduler_(Receiving()) {}

  static Config Receiving() {
    Config config = Prefilling();
    config.role = Role::kDecode;
    config.peer_timeout_s = 100;
    config.transfer_timeout_s = 1e9;
    return config;
  }

  // Submits, and returns the ticket of the manifest.
  TicketId Receive(RequestId id, PeerId peer, double now) {
    const std::vector<Token> prompt(10, static_cast<Token>(id));
    EXPECT_EQ(scheduler_.Submit({.id = id,
                                 .tokens = prompt,
                                 .max_tokens = 1,
                                 .stop_token_ids = {},
                                 .now = now,
                                 .peer = peer}),
              SubmitResult::kAccepted);
    return Ticket(now);
  }

  // Of the one transfer in the next step, which is committed.
  TicketId Ticket(double now) {
    const auto step = scheduler_.MakeStep(now);
    EXPECT_TRUE(step != nullptr && step->transfers.tickets.size() == 1);
    scheduler_.Commit(step->id, {});
    return step->transfers.tickets[0];
  }

  Deltas Say(std::vector<Report> reports, double now) {
    Deltas deltas = scheduler_.ApplyReports(reports, now);
    scheduler_.Audit();
    return deltas;
  }

  static report::TransferDone Done(TicketId ticket, std::size_t blocks = 3) {
    return {ticket, std::vector<std::uint8_t>(blocks, 1)};
  }

  Scheduler scheduler_;
};

TEST_F(ReceivingTest, ATicketAndAPeerOfOneNumberAreTwo) {
  const TicketId ticket = Receive(1, 1, 0);
  ASSERT_EQ(ticket, 1u) << "as the peer";
  Say({Done(ticket), report::PeerProgress{1}}, 0);
  EXPECT_EQ(Say({report::PeerDelivered{1, 42}}, 0).tokens, (std::vector<Token>{42}));
}

TEST_F(ReceivingTest, ATimerOfAPeerThatIsGoneIsNobodyElses) {
  Say({Done(Receive(1, kPeer, 0))}, 0);
  Say({report::PeerDelivered{kPeer, 42}}, 1);
  EXPECT_EQ(scheduler_.GetStats().peers, 0);
  Receive(2, kPeer, 2);  // the same id, and its manifest has not arrived
  Say({Done(Receive(3, kPeer + 1, 3))}, 3);
  Say({report::PeerDelivered{kPeer + 1, 42}}, 4);
  EXPECT_EQ(scheduler_.MakeStep(1000), nullptr) << "two timers, of none that waits";
  EXPECT_TRUE(scheduler_.TakeEnded().request_ids.empty());
  EXPECT_EQ(Say({report::PeerDelivered{kPeer, 43}}, 1000).request_ids,
            (std::vector<RequestId>{2}));
}

TEST_F(ReceivingTest, AManifestThatArrivesLateIsNobodyElses) {
  const TicketId late = Receive(1, kPeer, 0);
  const TicketId later = Receive(2, kPeer + 1, 0);
  Say({report::PeerGone{kPeer, true}, report::PeerGone{kPeer + 1, true}}, 0);
  const auto step = scheduler_.MakeStep(0);
  scheduler_.Commit(step->id, {});
  ASSERT_EQ(step->transfers.tickets.size(), 2u) << "a good-bye to each";
  for (const TicketId word : step->transfers.tickets) Say({Done(word, 0)}, 0);
  EXPECT_EQ(scheduler_.GetStats().peers, 0);
  Receive(3, kPeer, 0);
  Say({Done(late), Done(later)}, 0);
  EXPECT_EQ(scheduler_.MakeStep(1000), nullptr) << "no timer runs for what is still on its way";
  EXPECT_TRUE(scheduler_.TakeEnded().request_ids.empty());
  EXPECT_EQ(scheduler_.GetStats().running, 1);
}

}  // namespace
}  // namespace tokenspeed
