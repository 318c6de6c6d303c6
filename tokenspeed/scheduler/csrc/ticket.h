// Transfers: what moves between tiers or engines, what guards it, and what follows from its end.
#ifndef TOKENSPEED_SCHEDULER_TICKET_H_
#define TOKENSPEED_SCHEDULER_TICKET_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <vector>

#include "block_pool.h"
#include "digest.h"
#include "ids.h"

namespace tokenspeed {

enum class Tier : std::uint8_t { kNone, kDevice, kHost, kDisk, kRemote, kPeer };

// What keeps the source of a transfer as it is.
enum class Guard : std::uint8_t {
  kPinned,   // nobody writes source or destination before the acknowledgement
  kOrdered,  // it reads its source before any row of its step writes; the step's commit frees it
};

// What a transfer between two engines says beside its blocks.
enum class Word : std::uint8_t {
  kNone,
  kHandOver,  // the prompt is computed, all of it has arrived: here is the first token
  kAbandon,   // this side gives up: it will not touch the other's blocks again
};

// What follows from the acknowledgement.
enum class Purpose : std::uint8_t {
  kWriteBack,  // device to host: its blocks can be found on the host
  kLoad,       // host to device: the admitted request goes on
  kImageOut,   // device to host: the retracted request keeps its image
  kImageIn,    // host to device: the restored request goes on
  kQuery,      // disk or remote: what there is may be got
  kGet,        // disk or remote to host: its blocks can be found on the host
  kPut,        // host to disk or remote
  kSend,       // device to peer: one part of a prompt is through
  kReceive,    // peer to device: the peer knows where to write
  kWord,       // a hand-over, or a good-bye
};

// One block of a transfer. -1 where a tier knows no block ids: disk and remote go by digest.
struct Move {
  std::int32_t group = 0;
  std::int32_t column = 0;  // of the block table; 0 for a state
  BlockId source = kNoBlock;
  BlockId destination = kNoBlock;
};

// A transfer in flight. The blocks that it reads and writes are kept by the fence on its id; those
// that only it knows of are `targets`.
struct Ticket {
  TicketId id = 0;
  Purpose purpose = Purpose::kWriteBack;
  Tier source = Tier::kNone;
  Tier destination = Tier::kNone;
  Guard guard = Guard::kPinned;
  Word word = Word::kNone;
  Handle request = {};             // whom it is for; may be dead by the time it ends
  PeerId peer = 0;
  StepId after = 0;               // it reads what this step writes; 0: it may begin at once
  Token token = kNoToken;         // of a hand-over
  std::int32_t prefix_len = 0;    // of a receive: leading tokens that this side has
  std::int32_t prompt_len = 0;    // of a receive
  std::uint64_t generation = 0;   // of the prefix cache: what was computed before a reset is void
  bool lost = false;
  std::vector<Move> moves = {};
  std::vector<Digest> digests = {};      // parallel to moves
  std::vector<BlockLease> targets = {};  // host blocks that it fills for nobody in particular

  void Add(const Move& move, const Digest& digest) {
    moves.push_back(move);
    digests.push_back(digest);
  }
};

// Tickets that are not acknowledged, those that are lost among them, and their timers. A timer
// starts when the mover can act: at once, or when the step whose results are moved is committed.
// O(log tickets) per operation. Not thread-safe.
class TicketBook {
 public:
  // REQUIRES: the id is the one that NextId named.
  Ticket& Add(Ticket ticket);
  [[nodiscard]] TicketId NextId() const { return last_ + 1; }
  [[nodiscard]] Ticket* Find(TicketId id);
  [[nodiscard]] const Ticket* Find(TicketId id) const;
  void Erase(TicketId id);
  // REQUIRES: it is not lost yet.
  void MarkLost(Ticket& ticket);

  // Starts timers, and names the tickets whose time is up, oldest first.
  std::vector<TicketId> Expire(double now, double timeout_s, StepId committed);

  // Without those that are lost.
  [[nodiscard]] std::int32_t num_live() const {
    return static_cast<std::int32_t>(tickets_.size()) - num_lost_;
  }
  [[nodiscard]] std::int32_t num_lost() const { return num_lost_; }
  // Blocks that tickets of this purpose move. O(1).
  [[nodiscard]] std::int32_t moving(Purpose purpose) const {
    return moving_[static_cast<std::size_t>(purpose)];
  }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [id, ticket] : tickets_) visit(ticket);
  }
  // Every ticket, to end its leases at the end of all things.
  std::map<TicketId, Ticket>& all() { return tickets_; }

  // Counts equal recomputation. Throws Broken.
  void Audit() const;

 private:
  struct Timer {
    double until = 0;
    TicketId id = 0;
  };
  static constexpr std::size_t kPurposes = 10;

  std::map<TicketId, Ticket> tickets_;
  TicketId last_ = 0;
  std::deque<TicketId> unarmed_;  // in order of creation
  std::deque<Timer> timers_;      // ascending; of tickets that may be gone
  std::int32_t num_lost_ = 0;
  std::int32_t moving_[kPurposes] = {};
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_TICKET_H_
