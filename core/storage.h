#pragma once
// A block of memory on one device, shared by the tensors that view it.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include <glade/core/device.h>

namespace glade {

/// A block of memory on one device; tensors that view it share it.
class Storage {
 public:
  /// Allocates; the bytes are not initialised. OutOfMemoryError with what was asked, held and free.
  Storage(std::size_t bytes, Device device);
  /// Page-locked host memory, from which copies to a GPU run asynchronously. Plain memory in a build without CUDA.
  static std::shared_ptr<Storage> pinned(std::size_t bytes);
  /// Memory that somebody else owns; `release` runs when the last tensor lets go of it.
  Storage(void* data, std::size_t bytes, Device device, std::function<void()> release);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }          ///< The first byte, in the device's address space; null for 0 bytes.
  std::size_t bytes() const { return bytes_; }  ///< The size as asked for.
  Device device() const { return device_; }     ///< Where the memory is.
  bool is_pinned() const { return pinned_; }    ///< Whether it is page-locked host memory.

  /// Counts in-place changes, so that the tape notices a changed saved tensor.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  /// For code that writes to data() itself; glade's in-place operations do it.
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

  /// Whether others may write to the memory now, unseen by version(): NumPy, or who else shares it.
  bool is_lent() const { return loans_.load(std::memory_order_relaxed) != returned_.load(std::memory_order_relaxed); }
  std::uint64_t loans() const { return loans_.load(std::memory_order_relaxed); }  ///< How often it was lent until now.
  void lend() { loans_.fetch_add(1, std::memory_order_relaxed); }                 ///< Before others get the memory.
  void take_back() { returned_.fetch_add(1, std::memory_order_relaxed); }         ///< When they have let go of it.

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_;
  bool pinned_ = false;
  std::function<void()> release_;
  std::atomic<std::uint64_t> version_{0}, loans_{0}, returned_{0};
};

}  // namespace glade
