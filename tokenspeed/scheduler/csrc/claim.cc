#include "claim.h"

#include <utility>

namespace tokenspeed {

Claim::~Claim() {
  for (; !entries_.empty(); entries_.pop_back()) {
    Entry& last = entries_.back();
    cache_.Revoke(std::move(last.lease), last.undo);
  }
}

void Claim::Share(const Found& found, std::int32_t column) {
  Entry entry{.group = found.group, .column = column, .tail = found.tail, .lease = {}, .undo = {}};
  entry.lease = cache_.Share(found.block, &entry.undo);
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
