#pragma once
// Raw memory for Storage. CPU: 64-byte aligned blocks, freed ones kept by size for reuse. CUDA: the stream-ordered pool.
#include <bit>
#include <cstddef>

#include <glade/core/device.h>

namespace glade::detail {

/// The size of the blocks, kept for reuse, that serve `bytes`: four sizes an octave, so that at most a quarter is unused.
inline std::size_t block_size(std::size_t bytes) {
  constexpr std::size_t fine = 64;
  const std::size_t step = bytes <= 4 * fine ? fine : std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

void* cpu_allocate(std::size_t bytes);
void cpu_free(void* data, std::size_t bytes) noexcept;

// Defined in core/cuda; in a build without CUDA they throw DeviceError.
void* cuda_allocate(std::size_t bytes, int device);
void cuda_free(void* data, std::size_t bytes, int device) noexcept;
void* pinned_allocate(std::size_t bytes);
void pinned_free(void* data) noexcept;

}  // namespace glade::detail
