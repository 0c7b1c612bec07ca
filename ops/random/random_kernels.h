#pragma once
// Kernels of ops/random. `out` is row-major and new; what they write is the same on every device.
#include <glade/core/draw.h>

namespace glade {

/// A distribution and its parameters: low and high, mean and deviation, or p.
struct Law {
  enum { uniform, normal, bernoulli } distribution;
  double first, second = 0;
};

namespace cpu {
void fill_random(const Tensor& out, const Law& law, const Draw& place);
void progression(const Tensor& out, Scalar start, Scalar step);
}  // namespace cpu

namespace cuda {
void fill_random(const Tensor& out, const Law& law, const Draw& place);
void progression(const Tensor& out, Scalar start, Scalar step);
}  // namespace cuda

}  // namespace glade
