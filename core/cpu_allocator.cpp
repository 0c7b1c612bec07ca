// Freed blocks are kept by size class: the same sizes come back step after step, and fresh pages cost a fault each.
#include <bit>
#include <cstdlib>
#include <mutex>
#include <vector>

#include <glade/core/allocator.h>
#include <glade/core/format.h>

namespace glade::detail {

namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMaxCached = std::size_t{1} << 30;  // bytes kept in all

// Classes of four steps an octave, so that at most a quarter of a block is unused.
std::size_t round_up(std::size_t bytes) {
  if (bytes <= 256) return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

std::size_t size_class(std::size_t rounded) {
  if (rounded <= 256) return rounded / kAlignment;
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

// Never destroyed: tensors in static variables may be freed after it would be.
Cache& cache() {
  static Cache* instance = new Cache;
  return *instance;
}

}  // namespace

void* cpu_allocate(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > std::size_t{1} << 56) fail<OutOfMemoryError>("cannot allocate {} bytes on cpu", bytes);
  const std::size_t rounded = round_up(bytes);
  Cache& kept = cache();
  {
    std::lock_guard lock(kept.mutex);
    auto& list = kept.blocks[size_class(rounded)];
    if (!list.empty()) {
      void* block = list.back();
      list.pop_back();
      kept.bytes -= rounded;
      return block;
    }
  }
  void* block = std::aligned_alloc(kAlignment, rounded);
  if (block == nullptr) {
    std::lock_guard lock(kept.mutex);
    kept.clear();
    block = std::aligned_alloc(kAlignment, rounded);
  }
  if (block == nullptr) fail<OutOfMemoryError>("cannot allocate {} bytes on cpu", bytes);
  return block;
}

void cpu_free(void* data, std::size_t bytes) noexcept {
  if (data == nullptr) return;
  const std::size_t rounded = round_up(bytes);
  Cache& kept = cache();
  std::lock_guard lock(kept.mutex);
  if (kept.bytes + rounded > kMaxCached) {
    std::free(data);
    return;
  }
  kept.blocks[size_class(rounded)].push_back(data);
  kept.bytes += rounded;
}

}  // namespace glade::detail
