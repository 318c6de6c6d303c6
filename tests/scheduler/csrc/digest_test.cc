#include "digest.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace tokenspeed {
namespace {

constexpr DigestKey kKey{0x0706050403020100ULL, 0x0f0e0d0c0b0a0908ULL};

std::string Counting(int length) {
  std::string bytes;
  for (int i = 0; i < length; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

// Vectors of the authors' reference implementation: key 00..0f, message 00, 01, 02, ...
TEST(DigestTest, MatchesPublishedVectors) {
  EXPECT_EQ(SipHash128(kKey, ""), (Digest{0xe6a825ba047f81a3ULL, 0x930255c71472f66dULL}));
  EXPECT_EQ(SipHash128(kKey, Counting(1)), (Digest{0x44af996bd8c187daULL, 0x45fc229b11597634ULL}));
  EXPECT_EQ(SipHash128(kKey, Counting(15)), (Digest{0x11a8b03399e99354ULL, 0xd9c3cf970fec087eULL}));
  EXPECT_EQ(SipHash128(kKey, Counting(16)), (Digest{0xbb54b067caa4e26eULL, 0x77052385bf1533fdULL}));
  EXPECT_EQ(SipHash128(kKey, Counting(63)), (Digest{0x4a83502f77d15051ULL, 0x7cbd3f979a063e50ULL}));
}

// A block digest is the same function over parent and tokens as little-endian bytes.
TEST(DigestTest, BlockIsTheHashOfItsBytes) {
  for (int count = 1; count < 70; ++count) {
    std::vector<Token> tokens(static_cast<std::size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0x01020304);
    const Digest parent{0x1122334455667788ULL, 0x99aabbccddeeff00ULL};
    std::string bytes;
    const auto append = [&bytes](std::uint64_t value, int size) {
      for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
    };
    append(parent.low, 8);
    append(parent.high, 8);
    for (const Token token : tokens) append(static_cast<std::uint32_t>(token), 4);
    EXPECT_EQ(BlockDigest(kKey, parent, tokens), SipHash128(kKey, bytes)) << count;
  }
}

TEST(DigestTest, EverythingCounts) {
  const std::vector<Token> tokens{1, 2, 3, 4};
  const std::vector<Token> swapped{2, 1, 3, 4};
  const Digest root = RootDigest(kKey, "");
  const Digest block = BlockDigest(kKey, root, tokens);
  EXPECT_EQ(block, BlockDigest(kKey, root, tokens));
  EXPECT_NE(block, BlockDigest(kKey, root, swapped));
  EXPECT_NE(block, BlockDigest(kKey, RootDigest(kKey, "tenant"), tokens));
  EXPECT_NE(block, BlockDigest(kKey, block, tokens));
  EXPECT_NE(block, BlockDigest({kKey.k0, kKey.k1 + 1}, root, tokens));
  EXPECT_NE(RootDigest(kKey, "a"), RootDigest(kKey, std::string_view("a\0", 2)));
}

TEST(DigestTest, ATailIsKnownAsABlockOfItsLengthWouldBe) {
  const Digest parent = RootDigest(kKey, "salt");
  const std::vector<Token> tokens{3, 1, 4, 1, 5, 9, 2};
  const std::vector<Digest> tails = TailDigests(kKey, parent, tokens);
  ASSERT_EQ(tails.size(), tokens.size());
  for (std::size_t length = 1; length <= tokens.size(); ++length) {
    EXPECT_EQ(tails[length - 1], BlockDigest(kKey, parent, std::span(tokens).first(length)));
  }
  EXPECT_TRUE(TailDigests(kKey, parent, {}).empty());
}

// A salt made of a block's bytes must not become that block.
TEST(DigestTest, SaltsCannotImitateBlocks) {
  const Digest parent{0, 0};
  const std::vector<Token> tokens{0, 0};
  EXPECT_NE(RootDigest(kKey, std::string(24, '\0')), BlockDigest(kKey, parent, tokens));
}

TEST(DigestTest, StepHashDependsOnOrderAndLength) {
  const auto hash = [](const std::vector<std::vector<std::int32_t>>& lists) {
    StepHash state;
    for (const auto& list : lists) state.AddAll(list);
    return state.value();
  };
  EXPECT_EQ(hash({{1, 2}, {3}}), hash({{1, 2}, {3}}));
  EXPECT_NE(hash({{1, 2}, {3}}), hash({{1}, {2, 3}}));
  EXPECT_NE(hash({{1, 2}}), hash({{2, 1}}));
  EXPECT_NE(hash({{-1}}), hash({{1}}));
}

}  // namespace
}  // namespace tokenspeed
