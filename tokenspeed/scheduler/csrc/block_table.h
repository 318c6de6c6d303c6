// The block tables that kernels read: one persistent row per slot.
#ifndef TOKENSPEED_SCHEDULER_BLOCK_TABLE_H_
#define TOKENSPEED_SCHEDULER_BLOCK_TABLE_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "fence.h"
#include "ids.h"

namespace tokenspeed {

class BlockTables;

// A slot, and with it a row of the block tables. Move-only; given up by `Retire(fence)` like a
// BlockLease. Dropping a held one ends the process.
class [[nodiscard]] SlotLease {
 public:
  SlotLease() = default;
  SlotLease(SlotLease&& other) noexcept
      : tables_(std::exchange(other.tables_, nullptr)), id_(std::exchange(other.id_, -1)) {}
  SlotLease& operator=(SlotLease&& other) noexcept;
  SlotLease(const SlotLease&) = delete;
  SlotLease& operator=(const SlotLease&) = delete;
  ~SlotLease();

  [[nodiscard]] SlotId id() const { return id_; }

  // The row is cleared at the next step; the slot is handed out again once the fence has passed.
  // REQUIRES: the lease holds a slot.
  void Retire(Fence fence) &&;

 private:
  friend class BlockTables;
  SlotLease(BlockTables* tables, SlotId id) : tables_(tables), id_(id) {}

  BlockTables* tables_ = nullptr;
  SlotId id_ = -1;
};

// Entries [begin, end) of a slot's row changed.
struct DirtyRange {
  std::int32_t slot;
  std::int32_t begin;
  std::int32_t end;
};

// int32 [num_slots, row_length], row-major, at a fixed address. Unused entries are the null block.
// A row is divided into sections, one per cache group.
//
// Rows change only between `ClearRetired` and `TakeDirty`, that is inside a step: whoever copies
// the dirty ranges of a step finds them as the step meant them until the next step is made.
// Applying the ranges of every step to a mirror keeps it equal to the rows.
// Not thread-safe. Does not move.
class BlockTables {
 public:
  BlockTables(std::int32_t num_slots, std::int32_t row_length)
      : BlockTables(num_slots, std::vector<std::int32_t>{row_length}) {}
  BlockTables(std::int32_t num_slots, const std::vector<std::int32_t>& section_lengths);
  BlockTables(const BlockTables&) = delete;
  BlockTables& operator=(const BlockTables&) = delete;

  // REQUIRES: num_free() > 0.
  SlotLease Open();

  // Writes one entry of a section. O(1).
  void Put(const SlotLease& slot, std::int32_t section, std::int32_t column, BlockId block);

  // Clears the rows of retired slots. O(entries they used).
  void ClearRetired();

  // What changed since the last call, one range per slot and section, in the order of first
  // change. The range spans all changes there and may hold unchanged entries between them.
  [[nodiscard]] std::vector<DirtyRange> TakeDirty();

  // Slots fenced up to this step may be handed out again.
  void Settle(StepId committed);

  [[nodiscard]] std::int32_t num_slots() const { return num_slots_; }
  [[nodiscard]] std::int32_t row_length() const { return row_length_; }
  [[nodiscard]] std::int32_t num_free() const { return static_cast<std::int32_t>(free_.size()); }
  // The whole arena; for zero-copy views.
  [[nodiscard]] const BlockId* data() const { return entries_.data(); }
  [[nodiscard]] std::span<const BlockId> Row(SlotId slot) const;
  [[nodiscard]] std::span<const BlockId> Row(SlotId slot, std::int32_t section) const;

 private:
  friend class SlotLease;

  struct Piece {  // a section of a slot
    std::int32_t used = 0;  // entries in use; retired rows keep it until they are cleared
    std::int32_t dirty_begin = 0;
    std::int32_t dirty_end = 0;  // 0: clean
  };

  static std::size_t Index(std::int32_t i) { return static_cast<std::size_t>(i); }
  BlockId* RowData(SlotId slot) { return entries_.data() + Index(slot) * Index(row_length_); }
  Piece& PieceOf(SlotId slot, std::int32_t section) {
    return pieces_[Index(slot) * Index(num_sections_) + Index(section)];
  }
  void MarkDirty(SlotId slot, std::int32_t section, std::int32_t begin, std::int32_t end);
  void Retire(SlotId slot, Fence fence);

  const std::int32_t num_slots_;
  const std::int32_t num_sections_;
  std::vector<std::int32_t> offsets_;  // first column of each section, then the row's length
  std::int32_t row_length_;
  std::vector<BlockId> entries_;
  std::vector<Piece> pieces_;
  std::vector<SlotId> free_;     // a stack; lowest ids first out at the start
  std::vector<SlotId> retired_;  // rows to be cleared
  std::vector<std::int32_t> dirty_;  // pieces with changes, in order of first change
  FenceQueue fenced_;
  StepId committed_ = 0;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_BLOCK_TABLE_H_
