// Identity of a prefix: a keyed 128-bit digest chained over blocks of tokens and a salt.
//
// SipHash-2-4 with 128-bit output. The key is private to one engine, so that a client cannot
// search for colliding prompts offline. Values do not depend on byte order or compiler.
#ifndef TOKENSPEED_SCHEDULER_DIGEST_H_
#define TOKENSPEED_SCHEDULER_DIGEST_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ids.h"

namespace tokenspeed {

struct Digest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend bool operator==(const Digest&, const Digest&) = default;
};

struct DigestKey {
  std::uint64_t k0 = 0;
  std::uint64_t k1 = 0;
};

// SipHash-2-4-128 of `bytes`, as its authors publish it (little-endian words).
Digest SipHash128(DigestKey key, std::string_view bytes);

// The chain's start for a salt (tenant, adapter, ...). Two salts share no block.
Digest RootDigest(DigestKey key, std::string_view salt);

// The digest of one full block after `parent`. Equal digests mean equal salt, equal tokens and
// equal tokens before them.
Digest BlockDigest(DigestKey key, const Digest& parent, std::span<const Token> tokens);

// Of the first token after `parent`, the first two, and so on: what BlockDigest says of each.
std::vector<Digest> TailDigests(DigestKey key, const Digest& parent, std::span<const Token> tokens);

// What a cache group keeps under a digest. Group 0 keeps it under the digest itself. Digests are
// keyed and 128 bits wide, so a constant per group keeps the groups apart.
inline Digest InGroup(const Digest& digest, std::int32_t group) {
  const auto g = static_cast<std::uint64_t>(group);
  return {digest.low ^ g * 0x9e3779b97f4a7c15ULL, digest.high ^ g * 0xc2b2ae3d27d4eb4fULL};
}

// A 64-bit mix of a sequence of values: identity of a Step. Not keyed, not cryptographic.
class StepHash {
 public:
  void Add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9e3779b97f4a7c15ULL;
    state_ ^= state_ >> 29;
  }
  template <typename T>
  void AddAll(const T& values) {
    Add(values.size());
    for (const auto value : values)
      Add(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
  }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x243f6a8885a308d3ULL;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_DIGEST_H_
