// The life of a request. A state is a type that owns what a request in that state holds. What can
// happen to it is in events.h, which of it may happen in rules.h, how in transitions.h.
//
//   Waiting --admit--> Prefilling --last chunk--> Decoding --last token due--> Finishing --> gone
//                       ^   |  |                     |  |                         ^
//           admit again |   |  `---- max_tokens 0 ---|--|-------------------------'
//                       |   |                        |  `-- stop token --> gone
//                       |   | preempt                | preempt
//                       |   v                        |
//                      Retracted <-------------------'
//                          `-- ended by a result that was in flight --> gone
//
// Abort leads from every state to "gone": its entry is erased, and results that still come in for
// it find a dead handle.
#ifndef TOKENSPEED_SCHEDULER_STATES_H_
#define TOKENSPEED_SCHEDULER_STATES_H_

#include <cstdint>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "block_pool.h"
#include "block_table.h"
#include "ids.h"

namespace tokenspeed {

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
  StepId last_step = 0;                // the latest step that touches the blocks
  std::uint64_t cache_generation = 0;  // PrefixCache::generation() at admission

  // The one definition of computed tokens: those that stand whatever becomes of the drafts.
  [[nodiscard]] std::int32_t computed() const { return scheduled - drafts_in_flight; }

  // Gives everything back once the last step that touches it is committed. Last block first:
  // the end of a prefix is evicted before its beginning.
  void Release() && {
    const Fence fence = Fence::AfterStep(last_step);
    for (std::vector<BlockLease>& blocks : groups) {
      for (; !blocks.empty(); blocks.pop_back()) {
        if (blocks.back().id() != kNoBlock) std::move(blocks.back()).Retire(fence);
      }
    }
    std::move(slot).Retire(fence);
  }
};

// Submitted, never run.
struct Waiting {};

// Known tokens remain to be computed.
struct Prefilling {
  Held held;
};

// All but the newest token are computed; a step computes that one and samples the next.
struct Decoding {
  Held held;
};

// Nothing is left to schedule; the last results are in flight.
struct Finishing {
  Held held;
};

// Preempted: holds nothing, will compute its tokens again. Results that were in flight when it
// was preempted are still its own; it waits for them before it queues again.
struct Retracted {
  std::int32_t samples_in_flight = 0;
};

// Ended. It owns nothing; its entry is erased at once.
struct Gone {};

using State = std::variant<Waiting, Prefilling, Decoding, Finishing, Retracted, Gone>;

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
