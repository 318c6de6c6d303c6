#include "block_table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "check.h"

namespace tokenspeed {

SlotLease& SlotLease::operator=(SlotLease&& other) noexcept {
  if (this != &other) {
    SlotLease dropped(std::move(*this));  // ends the process when a slot would be lost
    tables_ = std::exchange(other.tables_, nullptr);
    id_ = std::exchange(other.id_, -1);
  }
  return *this;
}

SlotLease::~SlotLease() {
  if (tables_ != nullptr) {
    std::fprintf(stderr, "slot %d was dropped without Retire(fence)\n", id_);
    std::abort();
  }
}

void SlotLease::Retire(Fence fence) && {
  TS_CHECK(tables_ != nullptr, "an empty lease holds nothing to retire");
  std::exchange(tables_, nullptr)->Retire(std::exchange(id_, -1), fence);
}

BlockTables::BlockTables(std::int32_t num_slots, std::int32_t row_length)
    : num_slots_(num_slots),
      row_length_(row_length),
      entries_(Index(num_slots) * Index(row_length), kNullBlock),
      slots_(Index(num_slots)) {
  free_.reserve(slots_.size());
  for (SlotId slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

SlotLease BlockTables::Open() {
  TS_CHECK(!free_.empty(), "the caller must see num_free() > 0 first");
  const SlotId slot = free_.back();
  free_.pop_back();
  TS_CHECK(slots_[Index(slot)].used == 0, "a slot is cleared before it is handed out");
  return SlotLease(this, slot);
}

void BlockTables::Append(const SlotLease& slot, BlockId block) {
  Slot& state = slots_[Index(slot.id())];
  TS_CHECK(state.used < row_length_, "a request within max_model_len fits its row");
  RowData(slot.id())[state.used] = block;
  MarkDirty(slot.id(), state.used, state.used + 1);
  ++state.used;
}

void BlockTables::MarkDirty(SlotId slot, std::int32_t begin, std::int32_t end) {
  Slot& state = slots_[Index(slot)];
  if (state.dirty_end == 0) {
    state.dirty_begin = begin;
    state.dirty_end = end;
    dirty_.push_back(slot);
  } else {
    state.dirty_begin = std::min(state.dirty_begin, begin);
    state.dirty_end = std::max(state.dirty_end, end);
  }
}

void BlockTables::Retire(SlotId slot, Fence fence) {
  retired_.push_back(slot);
  if (fence.step > committed_) {
    fenced_.Push(fence.step, slot);
  } else {
    free_.push_back(slot);
  }
}

void BlockTables::Settle(StepId committed) {
  committed_ = committed;
  fenced_.Settle(committed, [this](SlotId slot) { free_.push_back(slot); });
}

void BlockTables::ClearRetired() {
  for (const SlotId slot : retired_) {
    const std::int32_t used = std::exchange(slots_[Index(slot)].used, 0);
    if (used == 0) continue;
    std::fill_n(RowData(slot), used, kNullBlock);
    MarkDirty(slot, 0, used);
  }
  retired_.clear();
}

std::vector<DirtyRange> BlockTables::TakeDirty() {
  std::vector<DirtyRange> ranges;
  ranges.reserve(dirty_.size());
  for (const SlotId slot : dirty_) {
    Slot& state = slots_[Index(slot)];
    ranges.push_back({slot, state.dirty_begin, state.dirty_end});
    state.dirty_begin = state.dirty_end = 0;
  }
  dirty_.clear();
  return ranges;
}

std::span<const BlockId> BlockTables::Row(SlotId slot) const {
  return {entries_.data() + Index(slot) * Index(row_length_), Index(row_length_)};
}

}  // namespace tokenspeed
