// Cached prefixes seen from outside: pins, digests.
#include "scheduler.h"

#include <cmath>
#include <utility>

#include "check.h"

namespace tokenspeed {

std::int32_t Scheduler::PinPrefix(std::span<const Token> tokens, std::string_view salt,
                                  double ttl_s, double now) {
  Require(std::isfinite(now) && std::isfinite(ttl_s), "now and ttl_s must be finite seconds");
  Require(ttl_s > 0, "ttl_s must be positive");
  Require(!AnyNegative(tokens), "token ids must not be negative");
  if (!cache_.enabled()) return 0;
  const Match match = cache_.Find(DigestsOf(tokens, salt), 0);
  if (match.blocks == 0) return 0;
  std::vector<BlockLease> blocks;
  for (const Found& found : cache_.found()) blocks.push_back(cache_.Share(found.block));
  cache_.Forget();
  num_pinned_ += static_cast<std::int32_t>(blocks.size());
  pins_.emplace(now + ttl_s, std::move(blocks));
  blocked_ = {};  // who waits may have it dropped
  return match.blocks * config_.block_size;
}

// Others' fences stay with the blocks: a pin itself touches nothing.
bool Scheduler::DropFirstPin() {
  if (pins_.empty()) return false;
  std::vector<BlockLease>& blocks = pins_.begin()->second;
  num_pinned_ -= static_cast<std::int32_t>(blocks.size());
  for (; !blocks.empty(); blocks.pop_back()) std::move(blocks.back()).Retire(Fence::Now());
  pins_.erase(pins_.begin());
  return true;
}

void Scheduler::DropPinsUntil(double now) {
  while (!pins_.empty() && pins_.begin()->first <= now) DropFirstPin();
}

std::vector<Digest> Scheduler::DigestsOf(std::span<const Token> tokens,
                                         std::string_view salt) const {
  const auto block_size = static_cast<std::size_t>(config_.block_size);
  std::vector<Digest> digests;
  Digest parent = RootDigest(config_.digest_key, salt);
  for (std::size_t at = 0; at + block_size <= tokens.size(); at += block_size) {
    parent = BlockDigest(config_.digest_key, parent, tokens.subspan(at, block_size));
    digests.push_back(parent);
  }
  return digests;
}

std::vector<Digest> Scheduler::CachedDigests() const {
  std::vector<Digest> digests;
  for (BlockId block = 1; block <= cache_.pool().usable(); ++block) {
    if (cache_.index().Contains(block)) digests.push_back(cache_.index().DigestOf(block));
  }
  return digests;
}

}  // namespace tokenspeed
