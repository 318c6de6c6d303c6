// The life of a request. A state is a type that owns what a request in that state holds. What can
// happen to it is in events.h, which of it may happen in rules.h, how in transitions.h.
// README.md draws it.
//
// An end leads from every state to Gone: its entry is erased, and results that still come in for
// it find a dead handle.
#ifndef TOKENSPEED_SCHEDULER_STATES_H_
#define TOKENSPEED_SCHEDULER_STATES_H_

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "block_pool.h"
#include "block_table.h"
#include "ids.h"

namespace tokenspeed {

// Last block first: the end of a prefix is evicted before its beginning.
inline void RetireAll(std::vector<std::vector<BlockLease>>& groups, const Fence& fence) {
  for (std::vector<BlockLease>& blocks : groups) {
    for (; !blocks.empty(); blocks.pop_back()) {
      if (blocks.back().id() != kNoBlock) std::move(blocks.back()).Retire(fence);
    }
  }
}

// Everything that a running request owns. Moves as one bundle or is released as one.
struct Held {
  SlotLease slot;
  // Per cache group, equal to its section of the slot's row. Groups that keep tokens: `columns`
  // leases in the order of the prefix, empty where a window slid on. State groups: two, the state
  // that the next step reads (empty: the one it writes, or none yet) and the one it writes.
  std::vector<std::vector<BlockLease>> groups;
  std::int32_t columns = 0;            // blocks of tokens that there is room for
  // Leading tokens whose KV is cached or computed by a step, if all drafts in flight stand.
  std::int32_t scheduled = 0;
  std::int32_t published = 0;          // leading blocks offered to the prefix cache
  std::int32_t samples_in_flight = 0;  // tokens that steps in flight will bring for certain
  std::int32_t drafts_in_flight = 0;   // tokens that they may bring beside
  StepId last_step = 0;                // the latest step that touches the blocks; 0: none so far
  std::int32_t found = 0;              // leading tokens that admission found in a cache tier
  std::uint64_t cache_generation = 0;  // PrefixCache::generation() at admission

  // The one definition of computed tokens: those that stand whatever becomes of the drafts.
  [[nodiscard]] std::int32_t computed() const { return scheduled - drafts_in_flight; }

  // The block of a state group that holds the state after `scheduled` tokens: the one written last,
  // or before the first row the one to read.
  [[nodiscard]] const BlockLease& StateOf(std::size_t group) const {
    const std::vector<BlockLease>& blocks = groups[group];
    return last_step == 0 && blocks[0].id() != kNoBlock ? blocks[0] : blocks[1];
  }

  // Gives everything back once the last step that touches it is committed. What a transfer or a
  // peer touches waits for them too: they pinned it.
  void Release() && {
    const Fence fence = Fence::AfterStep(last_step);
    RetireAll(groups, fence);
    std::move(slot).Retire(fence);
  }
};

// What a retracted request keeps in the host tier, to go on without computing anything again.
struct Image {
  // Host blocks by cache group: of groups that keep tokens by column, empty where a window slid
  // on; of a state group one, the state after `scheduled` tokens.
  std::vector<std::vector<BlockLease>> groups;
  std::int32_t scheduled = 0;
  std::uint64_t cache_generation = 0;

  void Release() && { RetireAll(groups, Fence::Now()); }
};

// Elsewhere than the state: few requests have one, and every step walks over the states of all.
using OwnImage = std::unique_ptr<Image>;

inline void Release(OwnImage image) {
  if (image != nullptr) std::move(*image).Release();
}

// Disaggregated prefill: waits for its peer to say where the blocks are to go.
struct Bootstrapping {};

// Submitted, never run.
struct Waiting {};

// Disk or remote are asked for more of its prefix; what they have comes into the host tier.
struct Fetching {
  std::int32_t outstanding = 0;  // tickets
};

// Admitted; cached blocks come from the host tier into its own.
struct Prefetching {
  Held held;
  TicketId ticket = 0;
};

// Disaggregated decode: admitted; a peer computes its prompt and writes its blocks.
struct Receiving {
  Held held;
  PeerId peer = 0;
};

// Known tokens remain to be computed.
struct Prefilling {
  Held held;
};

// Disaggregated prefill: the prompt is computed; its blocks, then its first token go to the peer.
struct PrefillDone {
  Held held;
};

// All but the newest token are computed, or all but the newest and those before it that were forced;
// a step computes these and samples the next.
struct Decoding {
  Held held;
};

// Nothing is left to schedule; the last results are in flight.
struct Finishing {
  Held held;
};

// Preempted; what it had computed is on its way into the host tier. The device blocks are given
// up: the copy is ordered before whoever gets them.
struct WritingBack {
  OwnImage image;
  TicketId ticket = 0;
  std::int32_t samples_in_flight = 0;
};

// Preempted: holds no slot and no device block. It goes on from its image, or without one computes
// its tokens again. Results that were in flight when it was preempted are still its own; it waits
// for them before it queues again.
struct Retracted {
  std::int32_t samples_in_flight = 0;
  OwnImage image = nullptr;
};

// Admitted again; its image comes back into blocks of its own.
struct Restoring {
  Held held;
  TicketId ticket = 0;
  OwnImage image;
};

// Ended. It owns nothing; its entry is erased at once.
struct Gone {};

using State = std::variant<Bootstrapping, Waiting, Fetching, Prefetching, Receiving, Prefilling,
                           PrefillDone, Decoding, Finishing, WritingBack, Retracted, Restoring,
                           Gone>;

// Somebody else fills the blocks that it holds.
inline bool IsFilled(const State& state) {
  return std::holds_alternative<Prefetching>(state) || std::holds_alternative<Receiving>(state) ||
         std::holds_alternative<Restoring>(state);
}

// The transfer that fills its blocks or its image, 0 when there is none.
inline TicketId TicketOf(const State& state) {
  return std::visit(
      [](const auto& s) -> TicketId {
        if constexpr (requires { s.ticket; }) {
          return s.ticket;
        } else {
          return 0;
        }
      },
      state);
}

// The image that it has or stores, nullptr when there is none.
inline const Image* ImageOf(const State& state) {
  return std::visit(
      [](const auto& s) -> const Image* {
        if constexpr (requires { s.image; }) {
          return s.image.get();
        } else {
          return nullptr;
        }
      },
      state);
}

// Its blocks come back by themselves.
inline bool IsLeaving(const State& state) {
  return std::holds_alternative<Finishing>(state) || std::holds_alternative<PrefillDone>(state);
}

// What the state holds, or nullptr.
template <typename AnyState>
auto* HeldOf(AnyState& state) {
  using Result = std::conditional_t<std::is_const_v<AnyState>, const Held, Held>;
  return std::visit(
      [](auto& s) -> Result* {
        if constexpr (requires { s.held; }) {
          return &s.held;
        } else {
          return nullptr;
        }
      },
      state);
}

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_STATES_H_
