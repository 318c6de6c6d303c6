#include "request_map.h"

#include "check.h"

namespace tokenspeed {

Request& RequestMap::Enter(RequestId id) {
  TS_CHECK(!by_id_.contains(id), "an id has one live request");
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(entries_.size()));
    entries_.push_back(nullptr);
    generations_.push_back(1);
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  entries_[index] = std::make_unique<Request>();
  Request& request = *entries_[index];
  request.handle = {index, generations_[index]};
  request.id = id;
  by_id_.emplace(id, index);
  return request;
}

void RequestMap::Erase(Request& request) {
  const std::uint32_t index = request.handle.index;
  by_id_.erase(request.id);
  ++generations_[index];
  free_.push_back(index);
  entries_[index].reset();
}

Request* RequestMap::Find(RequestId id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : entries_[it->second].get();
}

Request* RequestMap::Find(Handle handle) const {
  return generations_[handle.index] == handle.generation ? entries_[handle.index].get() : nullptr;
}

}  // namespace tokenspeed
