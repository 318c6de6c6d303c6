// What can happen to a request. An event carries what the new state is to own.
#ifndef TOKENSPEED_SCHEDULER_EVENTS_H_
#define TOKENSPEED_SCHEDULER_EVENTS_H_

#include "states.h"

namespace tokenspeed::event {

// The peer said where the blocks of its prompt are to go.
struct Bootstrap {};

// Disk or remote are asked for its prefix.
struct Fetch {
  std::int32_t tickets = 0;
};

// One of these tickets is through. With the last it queues again.
struct Fetched {
  std::int32_t more = 0;  // tickets that follow from the answer
};

// It takes a slot and the blocks of all its known tokens.
struct Admit {
  Held held;
};

// The same, and some of the blocks are to be filled from the host tier first.
struct AdmitLoading {
  Held held;
  TicketId ticket = 0;
};

// The same, and a peer is to fill them.
struct AdmitReceiving {
  Held held;
  PeerId peer = 0;
};

// The same, and they are to be filled from its image.
struct AdmitRestoring {
  Held held;
  TicketId ticket = 0;
};

// What it waited for is in its blocks.
struct Arrived {};

// It is not, or not all of it: it computes it itself.
struct NotArrived {};

// A step computes the last of its known tokens and samples the next.
struct StartDecoding {};

// The same, for a peer that goes on from there.
struct HandOver {};

// Everything it asked for is scheduled.
struct AwaitLast {};

// Somebody before it needs its blocks.
struct Preempt {};

// The same, and the host tier takes what it had computed.
struct WriteBack {
  OwnImage image;
  TicketId ticket = 0;
};

// Its image is complete.
struct ImageStored {};

// It is not: the request will compute its tokens again.
struct ImageLost {};

// What a step sampled for it has come: one token, and as many more as drafts stood.
struct Sampled {
  std::int32_t drafts = 0;    // that its row carried
  std::int32_t rejected = 0;  // of these
};

// The end: a stop token, its last token, an abort, a peer that failed.
struct End {};

}  // namespace tokenspeed::event

#endif  // TOKENSPEED_SCHEDULER_EVENTS_H_
