#pragma once
// The product that both libraries compute: a batch of equal-sized matrices at fixed distances.
#include <glade/core/tensor.h>

namespace glade {

/// A batch of matrices in memory: rows are contiguous, or columns where `transposed`.
struct GemmMatrix {
  const void* data = nullptr;
  std::int64_t leading = 0;       ///< from one row (column where transposed) to the next, in elements
  std::int64_t batch_stride = 0;  ///< from one matrix to the next, in elements
  bool transposed = false;
};

/// out[i] = a[i] b[i] + bias + addend[i], with out[i] and addend[i] [m, n] row-major without gaps, a[i] [m, k], b[i] [k, n],
/// bias [n]; bias and addend may be null. No size is zero.
struct Gemm {
  Device device;
  DType dtype = DType::float32;
  DType out_dtype = dtype;  ///< dtype, or float32 for 16-bit operands
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  GemmMatrix a{}, b{};
  const void* bias = nullptr;
  const void* addend = nullptr;  ///< in out's dtype and places; may be out
  void* out = nullptr;
  std::int64_t out_batch_stride = 0;
};

namespace cpu {
void gemm(const Gemm& problem);
/// out [batch, m, n] = a [batch, m, k] b [batch, k, n], all row-major, of integers (not bool), which wrap around. No size but k
/// is zero.
void multiply_integers(const Tensor& out, const Tensor& a, const Tensor& b);
}  // namespace cpu
namespace cuda {
void gemm(const Gemm& problem);
/// Computes a product with one row or one column by a kernel of glade's. Returns false, and does nothing, if the library has to.
bool multiply_by_vector(const Gemm& problem);
void multiply_integers(const Tensor& out, const Tensor& a, const Tensor& b);
}  // namespace cuda

}  // namespace glade
