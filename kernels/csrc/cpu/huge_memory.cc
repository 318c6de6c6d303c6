#include "cpu/huge_memory.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ts {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Untouched pages of a chunk cost nothing, so a chunk may be larger than a small model.
constexpr std::size_t kChunk = std::size_t{64} << 20;
constexpr std::size_t kLine = 64;

std::size_t RoundUp(std::size_t value, std::size_t unit) { return (value + unit - 1) / unit * unit; }

class Chunk {
 public:
  explicit Chunk(std::size_t size)
      : size_(size), data_(static_cast<std::byte*>(std::aligned_alloc(kHugePage, size))) {
    if (data_ == nullptr) throw std::bad_alloc();
    // Where it is refused the kernels are slower, not wrong.
    (void)PreferHugePages(data_, size_);
  }
  ~Chunk() { std::free(data_); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // Null where `bytes` do not fit any more.
  std::byte* Take(std::size_t bytes) {
    if (bytes > size_ - used_) return nullptr;
    std::byte* taken = data_ + used_;
    used_ += bytes;
    return taken;
  }

 private:
  std::size_t size_;
  std::size_t used_ = 0;
  std::byte* data_;
};

}  // namespace

bool PreferHugePages(void* data, std::size_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const auto begin = RoundUp(reinterpret_cast<std::uintptr_t>(data), kHugePage);
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  return begin < end && madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) == 0;
#else
  (void)data;
  (void)bytes;
  return false;
#endif
}

std::shared_ptr<std::byte> AllocateWeights(std::size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<Chunk> current;  // owned by the allocations in it
  const std::size_t rounded = RoundUp(std::max<std::size_t>(bytes, 1), kLine);
  const std::lock_guard lock(mutex);
  std::shared_ptr<Chunk> chunk = current.lock();
  std::byte* data = chunk ? chunk->Take(rounded) : nullptr;
  if (data == nullptr) {
    chunk = std::make_shared<Chunk>(RoundUp(std::max(rounded, kChunk), kHugePage));
    data = chunk->Take(rounded);
    current = chunk;
  }
  std::memset(data, 0, rounded);
  return {std::move(chunk), data};
}

}  // namespace ts
