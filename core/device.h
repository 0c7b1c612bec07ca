#pragma once
// Where a tensor lives.
#include <cstddef>
#include <string>
#include <string_view>

namespace glade {

enum class DeviceType : unsigned char { cpu, cuda };  ///< Kinds of memory, each with kernels of its own.

/// The CPU or one GPU.
struct Device {
  DeviceType type = DeviceType::cpu;  ///< On the CPU or on a GPU.
  int index = 0;                      ///< Which GPU, counted from 0 among those that the process sees; 0 for the CPU.

  bool is_cpu() const { return type == DeviceType::cpu; }    ///< Whether tensors there are in host memory.
  bool is_cuda() const { return type == DeviceType::cuda; }  ///< Whether tensors there are on a GPU.
  bool operator==(const Device&) const = default;

  /// "cpu", "cuda:0", ...
  std::string name() const;
  /// Reads "cpu", "cuda", "cuda:N" or "auto" (cuda:0 where there is one, else cpu). ValueError for anything else;
  /// DeviceError for a CUDA device that is not there.
  static Device parse(std::string_view text);
};

inline constexpr Device kCPU{DeviceType::cpu, 0};    ///< Host memory.
inline constexpr Device kCUDA{DeviceType::cuda, 0};  ///< The first GPU.

namespace cuda {
/// Whether the library was built with CUDA.
bool is_built();
/// The number of CUDA devices that can be used; 0 in a build without CUDA or on a machine without a GPU.
int device_count();
inline bool is_available() { return device_count() > 0; }  ///< Whether there is a GPU that can be used.
/// DeviceError, saying why, unless cuda:`device` can be used.
void check_device(int device);
/// Waits for all work queued on every stream of the device.
void synchronize(int device = 0);

/// What a GPU's memory pool holds.
struct MemoryStats {
  std::size_t allocated = 0;       ///< bytes in live tensors
  std::size_t peak_allocated = 0;  ///< the largest `allocated` since the start or the last reset
  std::size_t reserved = 0;        ///< bytes the pool holds from the driver
};
MemoryStats memory_stats(int device = 0);      ///< DeviceError without that GPU.
void reset_peak_memory_stats(int device = 0);  ///< From here on, peak_allocated counts from what is live now.
/// Gives the pool's unused memory back to the driver.
void empty_cache(int device = 0);
}  // namespace cuda

}  // namespace glade
