#include "fence.h"

#include <utility>

#include "check.h"

namespace tokenspeed {

void Fences::Open(Gate gate) {
  TS_CHECK(gate.id != 0, "0 names no transfer and no peer");
  TS_CHECK(gates_.try_emplace(gate).second, "a gate is opened once");
}

void Fences::Add(std::int32_t id, const Fence& fence) {
  Waits& waits = waits_[Index(id)];
  if (fence.step > waits.step) waits.step = fence.step;
  if (fence.ticket != 0) AddGate(id, Gate::Of(fence.ticket));
  if (fence.peer != 0) AddGate(id, Gate::OfPeer(fence.peer));
}

void Fences::AddGate(std::int32_t id, Gate gate) {
  const auto at = gates_.find(gate);
  if (at == gates_.end()) return;  // through already
  at->second.ids.push_back(id);
  ++waits_[Index(id)].gates;
  if (at->second.lost) MarkLost(id);
}

void Fences::MarkLost(std::int32_t id) {
  if (waits_[Index(id)].lost++ == 0) ++num_quarantined_;
}

void Fences::Lose(Gate gate) {
  const auto at = gates_.find(gate);
  TS_CHECK(at != gates_.end(), "what is lost was open");
  if (std::exchange(at->second.lost, true)) return;
  for (const std::int32_t id : at->second.ids) MarkLost(id);
}

Fences::Behind Fences::Close(Gate gate) {
  const auto at = gates_.find(gate);
  TS_CHECK(at != gates_.end(), "what passes was open");
  Behind behind = std::move(at->second);
  gates_.erase(at);
  for (const std::int32_t id : behind.ids) {
    Waits& waits = waits_[Index(id)];
    --waits.gates;
    if (behind.lost && --waits.lost == 0) --num_quarantined_;
  }
  return behind;
}

void Fences::Audit() const {
  std::vector<Waits> counted(waits_.size());
  for (const auto& [gate, behind] : gates_) {
    for (const std::int32_t id : behind.ids) {
      ++counted[Index(id)].gates;
      counted[Index(id)].lost += behind.lost ? 1 : 0;
    }
  }
  std::int32_t quarantined = 0;
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    TS_CHECK(counted[i].gates == waits_[i].gates && counted[i].lost == waits_[i].lost,
             "the gates of an id equal recomputation");
    quarantined += waits_[i].lost > 0 ? 1 : 0;
  }
  TS_CHECK(quarantined == num_quarantined_, "the quarantine count equals recomputation");
}

}  // namespace tokenspeed
