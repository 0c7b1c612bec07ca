#include <glade/core/memory.h>

#include <algorithm>
#include <unordered_set>

#include <glade/core/cuda/cuda.h>
#include <glade/core/format.h>

namespace glade::cuda {

std::string memory_summary(int device, const MemoryCategories& categories) {
  const MemoryStats stats = memory_stats(device);
  const Device on{DeviceType::cuda, device};
  DeviceGuard guard(on);
  std::size_t available = 0, total = 0;
  GLADE_CUDA(cudaMemGetInfo(&available, &total));

  std::string text = on.name() + " memory, MiB\n";
  const auto row = [&](const std::string& name, std::size_t bytes) {
    text += fmt::format("  {:28}{:12.1f}\n", name, static_cast<double>(bytes) / (1 << 20));
  };
  row("live tensors", stats.allocated);
  std::unordered_set<const Storage*> seen;
  std::size_t known = 0;
  for (const auto& [name, tensors] : categories) {
    std::size_t bytes = 0;
    for (const Tensor& x : tensors)
      if (x.defined() && x.device() == on && seen.insert(x.storage().get()).second) bytes += x.storage()->bytes();
    row("  " + name, bytes);
    known += bytes;
  }
  if (!categories.empty()) row("  other", stats.allocated - std::min(known, stats.allocated));
  row("at most, since the reset", stats.peak_allocated);
  row("held by the pool", stats.reserved);
  row("free on the device", available);
  row("of", total);
  return text;
}

}  // namespace glade::cuda
