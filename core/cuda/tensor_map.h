#pragma once
// How the hardware's copies of boxes (TMA) learn of a tensor. For files compiled with CUDA only.
#include <cuda.h>

#include <cstdint>
#include <span>

namespace glade::cuda {

/// Of 16-bit values, innermost dimension first: sizes, the elements from one to the next in all dimensions but the innermost,
/// whose values follow each other, and the box that a copy takes, "128-byte swizzled" in shared memory, with zeros outside of the
/// tensor. Addresses and steps are multiples of 16 bytes.
CUtensorMap tensor_map(const void* data, std::span<const std::int64_t> sizes, std::span<const std::int64_t> steps,
                       std::span<const int> box);

}  // namespace glade::cuda
