#pragma once
// Instructions of the GPU that CUDA C++ has no function for, as kernels of several operations use them.
#include <cstdint>

namespace glade::cuda {

/// A matrix [8, 8] of 16-bit values, of which every lane has two of a row, transposed.
__device__ inline std::uint32_t transposed(std::uint32_t pair) {
  std::uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

}  // namespace glade::cuda
