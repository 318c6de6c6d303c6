#include "digest.h"

#include <bit>
#include <cstddef>

namespace tokenspeed {
namespace {

// Keys of roots and of blocks differ, so that no salt can imitate a block.
constexpr std::uint64_t kRootDomain = 0x726f6f74;  // "root"

class SipState {
 public:
  explicit SipState(DigestKey key)
      : v0_(0x736f6d6570736575ULL ^ key.k0),
        v1_(0x646f72616e646f6dULL ^ key.k1 ^ 0xee),
        v2_(0x6c7967656e657261ULL ^ key.k0),
        v3_(0x7465646279746573ULL ^ key.k1) {}

  void Word(std::uint64_t word) {
    v3_ ^= word;
    Round();
    Round();
    v0_ ^= word;
  }

  Digest Close() {
    Digest out;
    v2_ ^= 0xee;
    for (int i = 0; i < 4; ++i) Round();
    out.low = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    for (int i = 0; i < 4; ++i) Round();
    out.high = v0_ ^ v1_ ^ v2_ ^ v3_;
    return out;
  }

 private:
  void Round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

std::uint64_t Pair(Token first, Token second) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(first)) |
         static_cast<std::uint64_t>(static_cast<std::uint32_t>(second)) << 32;
}

SipState After(DigestKey key, const Digest& parent) {
  SipState state(key);
  state.Word(parent.low);
  state.Word(parent.high);
  return state;
}

// `count` tokens follow the parent; `odd` is the last of them if no word has it yet.
Digest Close(SipState state, std::size_t count, std::span<const Token> odd) {
  std::uint64_t last = static_cast<std::uint64_t>((16 + 4 * count) & 0xff) << 56;
  if (!odd.empty()) last |= static_cast<std::uint32_t>(odd[0]);
  state.Word(last);
  return state.Close();
}

}  // namespace

Digest SipHash128(DigestKey key, std::string_view bytes) {
  SipState state(key);
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i]));
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < 8; ++i) word |= byte(at + i) << (8 * i);
    state.Word(word);
  }
  std::uint64_t last = static_cast<std::uint64_t>(bytes.size() & 0xff) << 56;
  for (std::size_t i = 0; at + i < bytes.size(); ++i) last |= byte(at + i) << (8 * i);
  state.Word(last);
  return state.Close();
}

Digest RootDigest(DigestKey key, std::string_view salt) {
  return SipHash128({key.k0 ^ kRootDomain, key.k1}, salt);
}

// The same function over parent.low, parent.high and the tokens as little-endian words.
Digest BlockDigest(DigestKey key, const Digest& parent, std::span<const Token> tokens) {
  SipState state = After(key, parent);
  std::size_t at = 0;
  for (; at + 2 <= tokens.size(); at += 2) state.Word(Pair(tokens[at], tokens[at + 1]));
  return Close(state, tokens.size(), tokens.subspan(at));
}

std::vector<Digest> TailDigests(DigestKey key, const Digest& parent,
                                std::span<const Token> tokens) {
  std::vector<Digest> digests;
  digests.reserve(tokens.size());
  SipState state = After(key, parent);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i % 2 == 1) state.Word(Pair(tokens[i - 1], tokens[i]));
    digests.push_back(Close(state, i + 1, tokens.subspan(i, 1 - i % 2)));
  }
  return digests;
}

}  // namespace tokenspeed
