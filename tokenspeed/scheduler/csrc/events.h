// What can happen to a request. An event carries what the new state is to own.
#ifndef TOKENSPEED_SCHEDULER_EVENTS_H_
#define TOKENSPEED_SCHEDULER_EVENTS_H_

#include "states.h"

namespace tokenspeed::event {

// It takes a slot and the blocks of all its known tokens.
struct Admit {
  Held held;
};

// A step computes the last of its known tokens and samples the next.
struct StartDecoding {};

// Everything it asked for is scheduled.
struct AwaitLast {};

// Somebody before it needs its blocks.
struct Preempt {};

// What a step sampled for it has come: one token, and as many more as drafts stood.
struct Sampled {
  std::int32_t drafts = 0;    // that its row carried
  std::int32_t rejected = 0;  // of these
};

// The end: a stop token, its last token, an abort.
struct End {};

}  // namespace tokenspeed::event

#endif  // TOKENSPEED_SCHEDULER_EVENTS_H_
