#include "claim.h"

#include <utility>

namespace tokenspeed {

Claim::~Claim() {
  for (; !entries_.empty(); entries_.pop_back()) {
    Entry& last = entries_.back();
    cache_.Revoke(std::move(last.lease), last.undo);
  }
}

void Claim::Share(std::int32_t group, std::int32_t column, BlockId block) {
  Entry entry{.group = group, .column = column, .lease = {}, .undo = {}};
  entry.lease = cache_.Share(block, &entry.undo);
  entries_.push_back(std::move(entry));
}

bool Claim::Take(std::int32_t group, std::int32_t column) {
  if (cache_.pool().available() == 0) return false;
  Entry entry{.group = group, .column = column, .lease = {}, .undo = {}};
  entry.lease = cache_.Take(&entry.undo);
  entries_.push_back(std::move(entry));
  return true;
}

std::vector<Claim::Entry> Claim::Keep() && { return std::exchange(entries_, {}); }

}  // namespace tokenspeed
