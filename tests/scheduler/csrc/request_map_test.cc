#include "request_map.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "check.h"

namespace tokenspeed {
namespace {

TEST(RequestMapTest, AHandleDiesWithItsRequestEvenWhenIdAndEntryLiveAgain) {
  RequestMap map;
  const Handle old = map.Enter(7).handle;
  EXPECT_THROW(map.Enter(7), Broken);
  map.Erase(*map.Find(old));
  EXPECT_EQ(map.Find(old), nullptr);
  EXPECT_EQ(map.Find(RequestId{7}), nullptr);
  const Request& again = map.Enter(7);
  EXPECT_EQ(again.handle.index, old.index) << "entries are used again";
  EXPECT_EQ(map.Find(old), nullptr);
  EXPECT_EQ(map.Find(again.handle), &again);
}

TEST(RequestMapTest, EqualsAMap) {
  std::mt19937 random(4);
  RequestMap map;
  std::map<RequestId, Handle> live;
  std::vector<Handle> dead;
  for (int i = 0; i < 5'000; ++i) {
    const RequestId id = random() % 40;
    if (const auto it = live.find(id); it == live.end()) {
      live[id] = map.Enter(id).handle;
    } else {
      map.Erase(*map.Find(id));
      dead.push_back(it->second);
      live.erase(it);
    }
    ASSERT_EQ(map.size(), live.size());
  }
  for (const auto& [id, handle] : live) EXPECT_EQ(map.Find(handle), map.Find(id));
  for (const Handle handle : dead) EXPECT_EQ(map.Find(handle), nullptr);
  std::size_t visited = 0;
  map.ForEach([&](const Request& request) {
    EXPECT_EQ(live.at(request.id), request.handle);
    ++visited;
  });
  EXPECT_EQ(visited, live.size());
}

}  // namespace
}  // namespace tokenspeed
