// The integers of the scheduler. Nothing here is a string, a pointer or a hash.
#ifndef TOKENSPEED_SCHEDULER_IDS_H_
#define TOKENSPEED_SCHEDULER_IDS_H_

#include <cstddef>
#include <cstdint>

namespace tokenspeed {

using RequestId = std::uint64_t;  // chosen by the caller; unique among live requests
using BlockId = std::int32_t;     // index into the pool; 0 is the null block, -1 is "none"
using SlotId = std::int32_t;      // row of the block tables, and of per-slot device state
using StepId = std::uint64_t;     // counts from 1; 0 is "before the first step"
using TicketId = std::uint64_t;   // a transfer; counts from 1; 0 is none
using PeerId = std::uint64_t;     // a hand-over with another engine; named by who paired them; 0: none
using Token = std::int32_t;

// Of a count or an id that is not negative.
inline std::size_t Index(std::int32_t i) { return static_cast<std::size_t>(i); }

inline constexpr BlockId kNullBlock = 0;
inline constexpr BlockId kNoBlock = -1;
// The device already knows this token: it is the last one sampled in the row's slot.
inline constexpr Token kTokenOnDevice = -1;
// A Delta without a token.
inline constexpr Token kNoToken = -1;

// Names one life of one request. A handle of an ended request never becomes valid again, even
// when its index or its RequestId is reused: results in flight are matched by handle.
struct Handle {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;  // 0 is never live
  friend bool operator==(const Handle&, const Handle&) = default;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_IDS_H_
