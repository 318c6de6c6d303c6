#include "block_table.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "check.h"

namespace tokenspeed {
namespace {

bool operator==(const DirtyRange& a, const DirtyRange& b) {
  return a.slot == b.slot && a.begin == b.begin && a.end == b.end;
}

TEST(BlockTablesTest, ListsWhatChangedOncePerSlot) {
  BlockTables tables(3, 4);
  SlotLease first = tables.Open();
  SlotLease second = tables.Open();
  tables.Put(second, 0, 0, 9);
  tables.Put(first, 0, 0, 5);
  tables.Put(second, 0, 1, 8);
  auto dirty = tables.TakeDirty();
  ASSERT_EQ(dirty.size(), 2u);
  EXPECT_TRUE(dirty[0] == (DirtyRange{1, 0, 2}));
  EXPECT_TRUE(dirty[1] == (DirtyRange{0, 0, 1}));
  EXPECT_TRUE(tables.TakeDirty().empty());
  tables.Put(second, 0, 2, 7);
  dirty = tables.TakeDirty();
  ASSERT_EQ(dirty.size(), 1u);
  EXPECT_TRUE(dirty[0] == (DirtyRange{1, 2, 3}));
  std::move(first).Retire(Fence::Now());
  std::move(second).Retire(Fence::Now());
}

TEST(BlockTablesTest, ARetiredRowStaysUntilItIsClearedAndItsSlotUntilTheFence) {
  BlockTables tables(1, 4);
  SlotLease slot = tables.Open();
  tables.Put(slot, 0, 0, 5);
  (void)tables.TakeDirty();
  std::move(slot).Retire(Fence::AfterStep(3));
  EXPECT_EQ(tables.Row(0)[0], 5) << "whoever still copies the row finds it";
  EXPECT_EQ(tables.num_free(), 0);
  EXPECT_THROW((void)tables.Open(), Broken);
  tables.ClearRetired();
  EXPECT_EQ(tables.Row(0)[0], kNullBlock);
  EXPECT_EQ(tables.TakeDirty().size(), 1u);
  tables.Settle(3);
  EXPECT_EQ(tables.num_free(), 1);
}

TEST(BlockTablesTest, ARowHoldsNoMoreThanItsLength) {
  BlockTables tables(1, 2);
  SlotLease slot = tables.Open();
  tables.Put(slot, 0, 0, 1);
  tables.Put(slot, 0, 1, 2);
  EXPECT_THROW(tables.Put(slot, 0, 2, 3), Broken);
  std::move(slot).Retire(Fence::Now());
}

TEST(BlockTablesTest, AMirrorFedWithTheRangesStaysEqual) {
  std::mt19937 random(2);
  BlockTables tables(4, 8);
  std::vector<BlockId> mirror(4 * 8, kNullBlock);
  std::vector<SlotLease> open;
  std::vector<int> used(4, 0);
  for (StepId step = 1; step < 5'000; ++step) {
    tables.ClearRetired();
    if (tables.num_free() > 0 && random() % 2 == 0) {
      open.push_back(tables.Open());
      used[static_cast<std::size_t>(open.back().id())] = 0;
    }
    for (SlotLease& slot : open) {
      int& count = used[static_cast<std::size_t>(slot.id())];
      while (count < 8 && random() % 2 == 0) {
        tables.Put(slot, 0, count++, static_cast<BlockId>(1 + random() % 100));
      }
    }
    for (const DirtyRange& range : tables.TakeDirty()) {
      for (std::int32_t i = range.begin; i < range.end; ++i) {
        mirror[static_cast<std::size_t>(range.slot * 8 + i)] =
            tables.Row(range.slot)[static_cast<std::size_t>(i)];
      }
    }
    ASSERT_TRUE(std::equal(mirror.begin(), mirror.end(), tables.data()));
    if (!open.empty() && random() % 3 == 0) {
      std::move(open.back()).Retire(Fence::AfterStep(step));
      open.pop_back();
    }
    tables.Settle(step);
  }
  for (SlotLease& slot : open) std::move(slot).Retire(Fence::Now());
}

TEST(SlotLeaseDeathTest, DroppingASlotEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        BlockTables tables(1, 1);
        const SlotLease slot = tables.Open();
      },
      "slot 0 was dropped without Retire");
  EXPECT_DEATH(
      {
        BlockTables tables(2, 1);
        SlotLease slot = tables.Open();
        slot = tables.Open();
      },
      "slot 0 was dropped without Retire");
}

}  // namespace
}  // namespace tokenspeed
