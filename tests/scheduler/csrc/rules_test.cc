#include "rules.h"

#include <gtest/gtest.h>

#include "check.h"

namespace tokenspeed {
namespace {

TEST(RulesTest, AnEventInAStateThatRejectsItChangesNothing) {
  Trail trail{};
  State state = Waiting{};
  EXPECT_THROW(Apply(state, event::Sampled{}, trail), Broken);
  EXPECT_TRUE(std::holds_alternative<Waiting>(state));
  EXPECT_EQ(trail, Trail{});
}

TEST(RulesTest, AGuardStrikesBeforeAnythingMoves) {
  Trail trail{};
  State state = Retracted{.samples_in_flight = 1};
  EXPECT_THROW(Apply(state, event::Admit{}, trail), Broken);
  EXPECT_EQ(std::get<Retracted>(state).samples_in_flight, 1);
  EXPECT_EQ(Apply(state, event::Sampled{}, trail), Verdict::kGo);
  EXPECT_THROW(Apply(state, event::Sampled{}, trail), Broken);
  EXPECT_EQ(Apply(state, event::Admit{}, trail), Verdict::kGo);
  EXPECT_TRUE(std::holds_alternative<Prefilling>(state));
}

TEST(RulesTest, WhatIsIgnoredChangesNothing) {
  Trail trail{};
  State state = Gone{};
  EXPECT_EQ(Apply(state, event::End{}, trail), Verdict::kIgnore);
  EXPECT_EQ(Apply(state, event::Sampled{}, trail), Verdict::kIgnore);
  EXPECT_TRUE(std::holds_alternative<Gone>(state));
  EXPECT_EQ(trail, Trail{});
}

}  // namespace
}  // namespace tokenspeed
