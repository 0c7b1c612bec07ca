#pragma once
// Where a tensor lives.
#include <cstddef>
#include <string>
#include <string_view>

namespace glade {

enum class DeviceType : unsigned char { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  bool operator==(const Device&) const = default;

  /// "cpu", "cuda:0", ...
  std::string name() const;
  /// Reads "cpu", "cuda", "cuda:N" or "auto" (cuda:0 where there is one, else cpu). ValueError for anything else;
  /// DeviceError for a CUDA device that is not there.
  static Device parse(std::string_view text);
};

inline constexpr Device kCPU{DeviceType::cpu, 0};
inline constexpr Device kCUDA{DeviceType::cuda, 0};

namespace cuda {
/// Whether the library was built with CUDA.
bool is_built();
/// The number of CUDA devices that can be used; 0 in a build without CUDA or on a machine without a GPU.
int device_count();
inline bool is_available() { return device_count() > 0; }
/// DeviceError, saying why, unless cuda:`device` can be used.
void check_device(int device);
/// Waits for all work queued on every stream of the device.
void synchronize(int device = 0);

struct MemoryStats {
  std::size_t allocated = 0;       ///< bytes in live tensors
  std::size_t peak_allocated = 0;  ///< the largest `allocated` since the start or the last reset
  std::size_t reserved = 0;        ///< bytes the pool holds from the driver
};
MemoryStats memory_stats(int device = 0);
void reset_peak_memory_stats(int device = 0);
/// Gives the pool's unused memory back to the driver.
void empty_cache(int device = 0);
}  // namespace cuda

}  // namespace glade
