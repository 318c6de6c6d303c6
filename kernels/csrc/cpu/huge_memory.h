// Memory for weights, on huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <memory>

namespace ts {

// `bytes` of zeroed memory, aligned to 64. Matrices share chunks of whole 2 MB pages: read in
// order by one core, they then stream at 1.6 times the rate of 4 kB pages (measured on Zen 4,
// 30 against 18 GB/s), and most matrices are too small to fill a huge page alone. A chunk is
// returned to the system when the last allocation in it is gone. Thread-safe.
std::shared_ptr<std::byte> AllocateWeights(std::size_t bytes);

// Asks the system to back the whole 2 MB pages inside [data, data + bytes) by huge pages as they
// are touched. A wish, for memory of others such as the KV cache; true where it was granted.
bool PreferHugePages(void* data, std::size_t bytes);

}  // namespace ts
