// What a running request holds keeps up with it: columns, windows, states, publication.
#include "scheduler.h"

#include <algorithm>
#include <utility>

#include "check.h"

namespace tokenspeed {

void Scheduler::AddColumn(Held& held) {
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind == CacheGroup::Kind::kState) continue;
    held.groups[g].push_back(cache_.Take());
    tables_.Put(held.slot, static_cast<std::int32_t>(g), held.columns,
                held.groups[g].back().id());
  }
  ++held.columns;
}

// Gives back the blocks of window groups that no later query reads. Steps in flight may.
void Scheduler::Slide(Held& held) {
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    const CacheGroup& group = config_.groups[g];
    if (group.kind != CacheGroup::Kind::kWindow) continue;
    // From the first block still read to the left, until a hole: each block is given back once.
    const std::int32_t needed =
        std::max(0, held.computed() - group.window + 1) / config_.block_size;
    for (std::int32_t i = needed - 1; i >= 0; --i) {
      BlockLease& block = held.groups[g][static_cast<std::size_t>(i)];
      if (block.id() == kNoBlock) break;
      std::move(block).Retire(Fence::AfterStep(held.last_step));
      tables_.Put(held.slot, static_cast<std::int32_t>(g), i, kNullBlock);
    }
  }
}

// Before another row of the request: a state that was published stays as it is, and the row reads
// it and writes a fresh block; any other is updated in place. Without a block to spare nothing is
// published: a checkpoint never makes anybody wait.
void Scheduler::TurnStates(const Request& request, Held& held) {
  if (num_state_groups_ == 0) return;
  // In this order: what was promised is a sum over all who run.
  if (IsCheckpoint(request, held) &&
      cache_.pool().available() - Promised() >= num_state_groups_) {
    PublishStates(request, held);
  }
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind != CacheGroup::Kind::kState) continue;
    BlockLease& read = held.groups[g][0];
    BlockLease& written = held.groups[g][1];
    if (held.StateOf(g).id() != written.id()) continue;  // nothing is written yet
    if (read.id() != kNoBlock) std::move(read).Retire(Fence::AfterStep(held.last_step));
    const auto section = static_cast<std::int32_t>(g);
    tables_.Put(held.slot, section, 0, written.id());
    if (!cache_.pool().kept(written.id())) continue;
    read = std::move(written);
    written = cache_.Take();
    tables_.Put(held.slot, section, 1, written.id());
  }
}

// Whether the tokens scheduled so far are whole blocks and all known: where drafts are in flight they
// are not.
bool Scheduler::IsCheckpoint(const Request& request, const Held& held) const {
  return num_state_groups_ > 0 && cache_.enabled() &&
         held.cache_generation == cache_.generation() && held.scheduled <= request.known() &&
         held.scheduled > 0 && held.scheduled % config_.block_size == 0;
}

// The states after exactly the tokens scheduled so far, at a checkpoint.
// Only for later steps: rows of one step do not wait for each other's states.
void Scheduler::PublishStates(const Request& request, const Held& held) {
  if (!IsCheckpoint(request, held)) return;
  const auto last = static_cast<std::size_t>(held.scheduled / config_.block_size - 1);
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    if (config_.groups[g].kind != CacheGroup::Kind::kState) continue;
    Offer(held.StateOf(g).id(), InGroup(request.digests[last], static_cast<std::int32_t>(g)),
          static_cast<std::int32_t>(g), 0, held.last_step);
  }
}

// Of a request that ends: the tokens behind its last full block. Nobody writes to that block any
// more. What goes on from it copies it; so it stays on the device.
void Scheduler::PublishTail(const Request& request, const Held& held) {
  if (config_.min_tail_tokens == 0 || num_state_groups_ > 0 || !cache_.enabled()) return;
  if (held.cache_generation != cache_.generation()) return;
  const auto computed = static_cast<std::size_t>(std::min(held.computed(), request.known()));
  const auto block_size = static_cast<std::size_t>(config_.block_size);
  const std::size_t length = computed % block_size;
  if (length < static_cast<std::size_t>(config_.min_tail_tokens)) return;
  const std::size_t column = computed / block_size;
  const Digest digest =
      BlockDigest(config_.digest_key, column == 0 ? request.root : request.digests[column - 1],
                  std::span(request.tokens).subspan(column * block_size, length));
  for (std::size_t g = 0; g < config_.groups.size(); ++g) {
    cache_.PublishTail(held.groups[g][column].id(), InGroup(digest, static_cast<std::int32_t>(g)));
  }
}

// Offers every block that is full, whose tokens are all known, and which is computed by a step
// already made: every step after that one, and later rows of the same step, may read it.
void Scheduler::Publish(const Request& request, Held& held) {
  if (!cache_.enabled()) return;
  const std::int64_t ready = std::min(held.scheduled, request.known());
  while ((static_cast<std::int64_t>(held.published) + 1) * config_.block_size <= ready) {
    const auto i = static_cast<std::size_t>(held.published++);
    if (held.cache_generation != cache_.generation()) continue;
    for (std::size_t g = 0; g < config_.groups.size(); ++g) {
      if (config_.groups[g].kind == CacheGroup::Kind::kState) continue;
      const BlockId block = held.groups[g][i].id();
      TS_CHECK(block != kNoBlock, "a window slides over published blocks only");
      Offer(block, InGroup(request.digests[i], static_cast<std::int32_t>(g)),
            static_cast<std::int32_t>(g), static_cast<std::int32_t>(i), held.last_step);
    }
  }
}

}  // namespace tokenspeed
