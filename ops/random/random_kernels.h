#pragma once
// Kernels of ops/random. `out` is row-major and new; what they write is the same on every device.
#include <glade/core/draw.h>

namespace glade {

/// A distribution and its parameters: low and high, mean and deviation, p, or how many integers from `least` on.
struct Law {
  enum { uniform, normal, bernoulli, integers } distribution;
  double first, second = 0;
  std::int64_t least = 0;
};

namespace cpu {
void fill_random(const Tensor& out, const Law& law, const Draw& place);
void progression(const Tensor& out, Scalar start, Scalar step);
/// counts [rows + 1], int64: how many weights [rows, n] of each row are positive, and behind these -1 if any weight is negative
/// or not finite, else a number that is not.
void count_positive(const Tensor& counts, const Tensor& weights);
}  // namespace cpu

namespace cuda {
void fill_random(const Tensor& out, const Law& law, const Draw& place);
void progression(const Tensor& out, Scalar start, Scalar step);
void count_positive(const Tensor& counts, const Tensor& weights);
/// winners [rows], int64: in each row of weights [rows, n] the first position with the least time -log(1 - u) / weight, among the
/// positive weights. u are the numbers of uniform([rows, n]) in float64.
void first_of_race(const Tensor& winners, const Tensor& weights, const Draw& place);
}  // namespace cuda

}  // namespace glade
