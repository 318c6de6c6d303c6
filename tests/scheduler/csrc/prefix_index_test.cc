#include "prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

#include "check.h"

namespace tokenspeed {
namespace {

// A std::map shadows the index. Few different low words make long runs of collisions that wrap
// around the end of the cells.
TEST(PrefixIndexTest, EqualsAMapUnderCollisions) {
  constexpr std::int32_t kBlocks = 32;
  std::mt19937_64 random(3);
  PrefixIndex index(kBlocks);
  std::map<std::pair<std::uint64_t, std::uint64_t>, BlockId> shadow;
  const auto digest_of = [&random] {
    const std::uint64_t home = 62 + random() % 3;  // near the last of 64 cells
    return Digest{home, random() % 12};
  };
  for (int i = 0; i < 30'000; ++i) {
    const Digest digest = digest_of();
    const auto key = std::pair(digest.low, digest.high);
    const auto block = static_cast<BlockId>(random() % kBlocks);
    if (random() % 2 == 0) {
      if (!shadow.contains(key) && !index.Contains(block)) {
        index.Insert(digest, block);
        shadow[key] = block;
      }
    } else if (index.Contains(block)) {
      const Digest old = index.DigestOf(block);
      index.Erase(block);
      ASSERT_EQ(shadow.erase({old.low, old.high}), 1u);
    }
    const auto it = shadow.find(key);
    ASSERT_EQ(index.Find(digest), it == shadow.end() ? kNoBlock : it->second);
    ASSERT_EQ(index.size(), static_cast<std::int32_t>(shadow.size()));
    index.Audit();
  }
}

TEST(PrefixIndexTest, OneBlockPerDigestAndOneDigestPerBlock) {
  PrefixIndex index(4);
  index.Insert({1, 1}, 2);
  EXPECT_THROW(index.Insert({1, 1}, 3), Broken);
  EXPECT_THROW(index.Insert({2, 2}, 2), Broken);
  EXPECT_THROW(index.Erase(3), Broken);
  EXPECT_EQ(index.Find({1, 2}), kNoBlock) << "both words count";
}

}  // namespace
}  // namespace tokenspeed
