#include "prefix_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tokenspeed {
namespace {

Config Blocks(std::int32_t num_blocks, bool enabled) {
  return {.num_blocks = num_blocks, .block_size = 4, .prefix_cache = enabled, .digest_key = {}};
}

std::vector<Digest> Chain(std::uint64_t family, std::size_t length) {
  std::vector<Digest> digests;
  for (std::uint64_t i = 0; i < length; ++i) digests.push_back({family * 7919 + i * 31, family});
  return digests;
}

std::vector<BlockLease> Compute(PrefixCache& cache, const std::vector<Digest>& digests) {
  std::vector<BlockLease> leases;
  for (const Digest& digest : digests) {
    leases.push_back(cache.Take());
    cache.Publish(leases.back().id(), digest);
  }
  return leases;
}

void Retire(std::vector<BlockLease>& leases, Fence fence = Fence::Now()) {
  for (; !leases.empty(); leases.pop_back()) std::move(leases.back()).Retire(fence);
}

TEST(PrefixCacheTest, FindsTheLongestRunAndSaysWhatIsIdle) {
  PrefixCache cache(Blocks(10, true));
  const auto chain = Chain(1, 4);
  auto leases = Compute(cache, {chain[0], chain[1], chain[2]});
  EXPECT_EQ(cache.Find(chain, 1).blocks, 3);
  EXPECT_EQ(cache.Find(chain, 1).idle, 0);
  Retire(leases);
  EXPECT_EQ(cache.Find(chain, 1).idle, 3);
  EXPECT_EQ(cache.Find(Chain(2, 4), 2).blocks, 0);
  ASSERT_EQ(cache.Find(chain, 3).blocks, 3);
  std::vector<BlockLease> shared;
  for (int i = 0; i < 2; ++i) shared.push_back(cache.Share(cache.found()[i].block));
  EXPECT_EQ(cache.Find(chain, 3).idle, 1);
  Retire(shared);
  cache.Audit();
}

TEST(PrefixCacheTest, TheEndOfAPrefixGoesBeforeItsBeginning) {
  PrefixCache cache(Blocks(5, true));
  const auto chain = Chain(1, 4);
  auto leases = Compute(cache, chain);
  Retire(leases);
  std::vector<BlockLease> taken;
  for (std::int32_t left = 3; left >= 0; --left) {
    taken.push_back(cache.Take());
    EXPECT_EQ(cache.Find(chain, 0).blocks, left);
  }
  Retire(taken);
  cache.Audit();
}

TEST(PrefixCacheTest, AHeldCopyStaysAndAnIdleOneMakesWay) {
  PrefixCache cache(Blocks(10, true));
  const auto chain = Chain(1, 1);
  auto first = Compute(cache, chain);
  auto second = Compute(cache, chain);
  EXPECT_EQ(cache.index().Find(chain[0]), first[0].id());
  Retire(second);
  EXPECT_EQ(cache.pool().num_idle(), 0) << "an unknown copy is not worth keeping";
  Retire(first);
  EXPECT_EQ(cache.pool().num_idle(), 1);
  auto third = Compute(cache, chain);
  EXPECT_EQ(cache.index().Find(chain[0]), third[0].id());
  EXPECT_EQ(cache.pool().num_idle(), 0) << "the idle copy is free again";
  Retire(third);
  cache.Audit();
}

TEST(PrefixCacheTest, ResetForgetsEverythingAndCounts) {
  PrefixCache cache(Blocks(10, true));
  auto held = Compute(cache, Chain(1, 2));
  auto idle = Compute(cache, Chain(2, 3));
  Retire(idle);
  EXPECT_EQ(cache.Reset(), 5);
  EXPECT_EQ(cache.generation(), 1u);
  EXPECT_EQ(cache.Find(Chain(1, 2), 1).blocks, 0);
  EXPECT_EQ(cache.pool().num_free(), 7);
  Retire(held);
  EXPECT_EQ(cache.pool().num_free(), 9);
  cache.Audit();
}

TEST(PrefixCacheTest, DisabledNeverKeepsAnything) {
  PrefixCache cache(Blocks(10, false));
  auto leases = Compute(cache, Chain(1, 3));
  EXPECT_EQ(cache.Find(Chain(1, 3), 1).blocks, 0);
  Retire(leases);
  EXPECT_EQ(cache.pool().num_free(), 9);
}

// The memo is only an economy: the answer always equals that of a fresh walk.
TEST(PrefixCacheTest, TheMemoNeverShows) {
  std::mt19937 random(5);
  PrefixCache cache(Blocks(24, true));
  const std::vector<std::vector<Digest>> chains{Chain(1, 6), Chain(2, 6), Chain(3, 6)};
  std::vector<std::vector<BlockLease>> holders;
  const auto walk = [&cache](const std::vector<Digest>& chain) {
    Match match;
    for (const Digest& digest : chain) {
      const BlockId block = cache.index().Find(digest);
      if (block == kNoBlock) break;
      ++match.blocks;
      match.idle += cache.pool().place(block) == BlockPool::Place::kIdle ? 1 : 0;
    }
    return match;
  };
  std::uint64_t waiting = 1;
  StepId step = 1;
  for (int i = 0; i < 30'000; ++i) {
    const auto pick = random() % 100;
    if (pick < 15) {
      const auto& chain = chains[random() % 3];
      const auto length = 1 + random() % 6;
      if (cache.pool().available() >= 6) {
        holders.push_back(
            Compute(cache, {chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(length)}));
      }
    } else if (pick < 30 && !holders.empty()) {
      std::swap(holders[random() % holders.size()], holders.back());
      Retire(holders.back(), Fence::AfterStep(step));
      holders.pop_back();
    } else if (pick < 40) {
      cache.Settle(step++);
    } else if (pick < 41) {
      cache.Reset();
    } else if (pick < 45) {
      ++waiting;  // another request is first in line
    }
    const auto& chain = chains[waiting % 3];
    const Match expected = walk(chain);
    const Match found = cache.Find(chain, waiting);
    ASSERT_EQ(found.blocks, expected.blocks) << i;
    ASSERT_EQ(found.idle, expected.idle) << i;
  }
  for (auto& leases : holders) Retire(leases);
  cache.Audit();
}

TEST(PrefixCacheTest, FindsTheLongestTailAndNoticesALongerOne) {
  Config config = Blocks(10, true);
  config.min_tail_tokens = 2;
  PrefixCache cache(config);
  const std::vector<Token> tokens{1, 2, 3, 4, 5, 6, 7};
  const Digest root{5, 5};
  const std::vector<Digest> chain{BlockDigest({}, root, std::span(tokens).first(4))};
  const Tailed tailed{root, tokens};
  std::vector<BlockLease> leases = Compute(cache, chain);
  const auto publish = [&](std::size_t length) {
    leases.push_back(cache.Take());
    cache.PublishTail(leases.back().id(),
                      BlockDigest({}, chain[0], std::span(tokens).subspan(4, length)));
    return leases.back().id();
  };
  const auto tail = [&] { return cache.Find(chain, 1, false, &tailed).tail; };
  EXPECT_EQ(tail(), 0);
  publish(1);
  EXPECT_EQ(tail(), 0) << "too short";
  publish(2);
  EXPECT_EQ(tail(), 2);
  const BlockId longest = publish(3);
  EXPECT_EQ(tail(), 3) << "in spite of the memo";
  ASSERT_EQ(cache.found().size(), 2u);
  EXPECT_TRUE(cache.found()[1].tail && cache.found()[1].block == longest);
  EXPECT_EQ(cache.Find(chain, 1).tail, 3) << "remembered";
  EXPECT_EQ(cache.Find(chain, 2).tail, 0) << "not asked for";
  Retire(leases);
  cache.Audit();
}

TEST(PrefixCacheTest, WhatWasFoundBelowIsFoundHereOnceItCameUp) {
  PrefixCache below(Blocks(10, true));
  PrefixCache cache(Blocks(10, true), &below);
  const auto chain = Chain(1, 2);
  auto lower = Compute(below, chain);
  EXPECT_EQ(cache.Find(chain, 1, true).loads, 2);
  auto upper = Compute(cache, {chain[0]});
  EXPECT_EQ(cache.Find(chain, 1, true).loads, 1) << "in spite of the memo";
  ASSERT_EQ(cache.found().size(), 2u);
  EXPECT_EQ(cache.found()[0].block, upper[0].id());
  EXPECT_TRUE(!cache.found()[0].below && cache.found()[1].below);
  Retire(upper);
  Retire(lower);
}

// One full group, a window of 9 tokens (blocks of 4), a state group.
TEST(PrefixCacheTest, AJointMatchIsWhatEveryGroupCanGoOnFrom) {
  Config config = Blocks(30, true);
  config.groups = {{.kind = CacheGroup::Kind::kFull},
                   {.kind = CacheGroup::Kind::kWindow, .window = 9},
                   {.kind = CacheGroup::Kind::kState}};
  PrefixCache cache(config);
  const auto chain = Chain(1, 6);
  std::vector<BlockLease> leases;
  const auto publish = [&](std::size_t column, std::int32_t group) {
    leases.push_back(cache.Take());
    cache.Publish(leases.back().id(), InGroup(chain[column], group));
  };
  for (std::size_t column = 0; column < 6; ++column) publish(column, 0);
  for (const std::size_t column : {1, 2, 3, 5}) publish(column, 1);
  publish(2, 2);
  EXPECT_EQ(cache.Find(chain, 1).blocks, 3) << "the one state; its window is there";
  ASSERT_EQ(cache.found().size(), 6u) << "3 full, 2 of the window, 1 state";
  EXPECT_EQ(cache.found()[3].column, 1);
  publish(3, 2);
  EXPECT_EQ(cache.Find(chain, 1).blocks, 4) << "a new state is seen in spite of the memo";
  publish(5, 2);
  EXPECT_EQ(cache.Find(chain, 1).blocks, 4) << "block 4 of the window is missing";
  Retire(leases);
  cache.Audit();
}

}  // namespace
}  // namespace tokenspeed
