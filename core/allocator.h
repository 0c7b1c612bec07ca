#pragma once
// Raw memory for Storage. CPU: 64-byte aligned blocks, freed ones kept by size for reuse. CUDA: the stream-ordered pool.
#include <cstddef>

#include <glade/core/device.h>

namespace glade::detail {

void* cpu_allocate(std::size_t bytes);
void cpu_free(void* data, std::size_t bytes) noexcept;

// Defined in core/cuda; in a build without CUDA they throw DeviceError.
void* cuda_allocate(std::size_t bytes, int device);
void cuda_free(void* data, std::size_t bytes, int device) noexcept;
void* pinned_allocate(std::size_t bytes);
void pinned_free(void* data) noexcept;

}  // namespace glade::detail
