// Who is live: requests by the caller's id, and by handle.
#ifndef TOKENSPEED_SCHEDULER_REQUEST_MAP_H_
#define TOKENSPEED_SCHEDULER_REQUEST_MAP_H_

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ids.h"
#include "request.h"

namespace tokenspeed {

// Owns every live request at a fixed address. O(1) per operation. Ids are looked up in a hash
// map whose order nobody ever sees; `ForEach` goes by entry.
// Not thread-safe.
class RequestMap {
 public:
  // A fresh request with its id and handle set. REQUIRES: the id is not live.
  Request& Enter(RequestId id);

  // The request is gone; its handle stays dead for ever, its id may come back.
  void Erase(Request& request);

  // nullptr when not live.
  [[nodiscard]] Request* Find(RequestId id) const;
  [[nodiscard]] Request* Find(Handle handle) const;

  [[nodiscard]] std::size_t size() const { return by_id_.size(); }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& entry : entries_) {
      if (entry != nullptr) visit(*entry);
    }
  }

 private:
  std::vector<std::unique_ptr<Request>> entries_;
  std::vector<std::uint32_t> generations_;  // parallel to entries_
  std::vector<std::uint32_t> free_;
  std::unordered_map<RequestId, std::uint32_t> by_id_;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_REQUEST_MAP_H_
