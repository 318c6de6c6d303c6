// Digests that no store had when it was asked last.
#ifndef TOKENSPEED_SCHEDULER_ABSENT_H_
#define TOKENSPEED_SCHEDULER_ABSENT_H_

#include <cstddef>
#include <vector>

#include "digest.h"

namespace tokenspeed {

// Remembers for a time, and forgets when two digests want the same cell: it saves questions, and
// decides nothing else. Fixed memory, O(1). Not thread-safe.
class AbsentDigests {
 public:
  explicit AbsentDigests(double ttl_s) : ttl_s_(ttl_s), cells_(kCells) {}

  void Note(const Digest& digest, double now) { CellOf(digest) = {digest, now + ttl_s_}; }
  void Forget(const Digest& digest) {
    if (CellOf(digest).digest == digest) CellOf(digest) = {};
  }
  [[nodiscard]] bool Contains(const Digest& digest, double now) const {
    const Cell& cell = cells_[digest.low % kCells];
    return cell.until > now && cell.digest == digest;
  }

 private:
  static constexpr std::size_t kCells = 4096;
  struct Cell {
    Digest digest;
    double until = 0;
  };
  Cell& CellOf(const Digest& digest) { return cells_[digest.low % kCells]; }

  const double ttl_s_;
  std::vector<Cell> cells_;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_ABSENT_H_
