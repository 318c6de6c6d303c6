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

BlockTables::BlockTables(std::int32_t num_slots, const std::vector<std::int32_t>& section_lengths)
    : num_slots_(num_slots),
      num_sections_(static_cast<std::int32_t>(section_lengths.size())),
      offsets_{0} {
  for (const std::int32_t length : section_lengths) offsets_.push_back(offsets_.back() + length);
  row_length_ = offsets_.back();
  entries_.assign(Index(num_slots) * Index(row_length_), kNullBlock);
  pieces_.resize(Index(num_slots) * section_lengths.size());
  free_.reserve(Index(num_slots));
  for (SlotId slot = num_slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

SlotLease BlockTables::Open() {
  TS_CHECK(!free_.empty(), "the caller must see num_free() > 0 first");
  const SlotId slot = free_.back();
  free_.pop_back();
  for (std::int32_t section = 0; section < num_sections_; ++section) {
    TS_CHECK(PieceOf(slot, section).used == 0, "a slot is cleared before it is handed out");
  }
  return SlotLease(this, slot);
}

void BlockTables::Put(const SlotLease& slot, std::int32_t section, std::int32_t column,
                      BlockId block) {
  const std::int32_t at = offsets_[Index(section)] + column;
  TS_CHECK(at < offsets_[Index(section) + 1], "a request within max_model_len fits its row");
  Piece& piece = PieceOf(slot.id(), section);
  RowData(slot.id())[at] = block;
  MarkDirty(slot.id(), section, at, at + 1);
  piece.used = std::max(piece.used, column + 1);
}

void BlockTables::MarkDirty(SlotId slot, std::int32_t section, std::int32_t begin,
                            std::int32_t end) {
  Piece& piece = PieceOf(slot, section);
  if (piece.dirty_end == 0) {
    piece.dirty_begin = begin;
    piece.dirty_end = end;
    dirty_.push_back(slot * num_sections_ + section);
  } else {
    piece.dirty_begin = std::min(piece.dirty_begin, begin);
    piece.dirty_end = std::max(piece.dirty_end, end);
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
    for (std::int32_t section = 0; section < num_sections_; ++section) {
      const std::int32_t used = std::exchange(PieceOf(slot, section).used, 0);
      if (used == 0) continue;
      const std::int32_t begin = offsets_[Index(section)];
      std::fill_n(RowData(slot) + begin, used, kNullBlock);
      MarkDirty(slot, section, begin, begin + used);
    }
  }
  retired_.clear();
}

std::vector<DirtyRange> BlockTables::TakeDirty() {
  std::vector<DirtyRange> ranges;
  ranges.reserve(dirty_.size());
  for (const std::int32_t index : dirty_) {
    Piece& piece = pieces_[Index(index)];
    ranges.push_back({index / num_sections_, piece.dirty_begin, piece.dirty_end});
    piece.dirty_begin = piece.dirty_end = 0;
  }
  dirty_.clear();
  return ranges;
}

std::span<const BlockId> BlockTables::Row(SlotId slot) const {
  return {entries_.data() + Index(slot) * Index(row_length_), Index(row_length_)};
}

std::span<const BlockId> BlockTables::Row(SlotId slot, std::int32_t section) const {
  const std::int32_t begin = offsets_[Index(section)];
  return Row(slot).subspan(Index(begin), Index(offsets_[Index(section) + 1] - begin));
}

}  // namespace tokenspeed
