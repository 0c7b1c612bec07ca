#include <glade/core/storage.h>

#include <utility>

#include <glade/core/allocator.h>

namespace glade {

Storage::Storage(std::size_t bytes, Device device)
    : data_(device.is_cpu() ? detail::cpu_allocate(bytes) : detail::cuda_allocate(bytes, device.index)),
      bytes_(bytes),
      device_(device) {}

Storage::Storage(void* data, std::size_t bytes, Device device, std::function<void()> release)
    : data_(data), bytes_(bytes), device_(device), release_(release ? std::move(release) : [] {}) {}

std::shared_ptr<Storage> Storage::pinned(std::size_t bytes) {
  if (!cuda::is_available()) return std::make_shared<Storage>(bytes, kCPU);
  void* data = detail::pinned_allocate(bytes);
  auto storage = std::make_shared<Storage>(data, bytes, kCPU, [data] { detail::pinned_free(data); });
  storage->pinned_ = true;
  return storage;
}

Storage::~Storage() {
  if (release_) release_();
  else if (device_.is_cpu()) detail::cpu_free(data_, bytes_);
  else detail::cuda_free(data_, bytes_, device_.index);
}

}  // namespace glade
