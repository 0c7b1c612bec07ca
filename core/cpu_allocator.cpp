// Freed blocks are kept by size class: the same sizes come back step after step, and fresh pages cost a fault each. Small ones
// are left to malloc, which keeps them by thread: a lock would cost as much as the arithmetic on them.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <glade/core/allocator.h>
#include <glade/core/format.h>

namespace glade::detail {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kSmall = 896;                       // a block_size; glibc keeps up to 1032 bytes by thread
constexpr std::size_t kHugePage = std::size_t{1} << 21;   // blocks from this size on begin at a huge page
constexpr std::size_t kMaxCached = std::size_t{1} << 30;  // bytes kept in all

// The place of a block_size in a list of them.
std::size_t size_class(std::size_t rounded) {
  const auto octave = static_cast<std::size_t>(std::bit_width(rounded - 1));
  const std::size_t step = std::bit_floor(rounded - 1) / 4;
  return octave * 4 + rounded / step;
}

struct Cache {
  std::mutex mutex;
  std::vector<std::vector<void*>> blocks{std::vector<std::vector<void*>>(300)};
  std::size_t bytes = 0;

  void clear() {
    for (auto& list : blocks) {
      for (void* block : list) std::free(block);
      list.clear();
    }
    bytes = 0;
  }
};

/// From the system, or null. malloc aligns to 16 bytes, which leaves room before the data for the address to give back.
void* take(std::size_t rounded) {
  if (rounded >= kHugePage) {
    void* const block = std::aligned_alloc(kHugePage, (rounded + kHugePage - 1) / kHugePage * kHugePage);
#if defined(__linux__)
    if (block != nullptr) madvise(block, rounded, MADV_HUGEPAGE);  // a wish: without it there are more pages to look up
#endif
    return block;
  }
  if (rounded > kSmall) return std::aligned_alloc(kAlignment, rounded);
  char* const block = static_cast<char*>(std::malloc(rounded + kAlignment));
  if (block == nullptr) return nullptr;
  char* const data = block + kAlignment - reinterpret_cast<std::uintptr_t>(block) % kAlignment;
  reinterpret_cast<void**>(data)[-1] = block;
  return data;
}

void give_back(void* data, std::size_t rounded) { std::free(rounded > kSmall ? data : static_cast<void**>(data)[-1]); }

// Never destroyed: tensors in static variables may be freed after it would be.
Cache& cache() {
  static Cache* instance = new Cache;
  return *instance;
}

}  // namespace

void* cpu_allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > std::size_t{1} << 56) fail<OutOfMemoryError>("cannot allocate {} bytes on cpu", bytes);
  const std::size_t rounded = block_size(bytes);
  Cache& kept = cache();
  if (rounded > kSmall) {
    std::lock_guard lock(kept.mutex);
    auto& list = kept.blocks[size_class(rounded)];
    if (!list.empty()) {
      void* block = list.back();
      list.pop_back();
      kept.bytes -= rounded;
      return block;
    }
  }
  void* block = take(rounded);
  if (block == nullptr) {
    std::lock_guard lock(kept.mutex);
    kept.clear();
    block = take(rounded);
  }
  if (block == nullptr) fail<OutOfMemoryError>("cannot allocate {} bytes on cpu", bytes);
  return block;
}

void cpu_free(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  const std::size_t rounded = block_size(bytes);
  if (rounded <= kSmall) return give_back(data, rounded);
  Cache& kept = cache();
  std::lock_guard lock(kept.mutex);
  if (kept.bytes + rounded > kMaxCached) return give_back(data, rounded);
  try {
    kept.blocks[size_class(rounded)].push_back(data);
    kept.bytes += rounded;
  } catch (const std::bad_alloc&) {  // the list could not grow
    give_back(data, rounded);
  }
}

}  // namespace glade::detail
