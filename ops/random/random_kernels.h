#pragma once
// Kernels of ops/random. `out` is row-major and new; what they write is the same on every device.
#include <glade/core/draw.h>

namespace glade {

namespace cpu {
void uniform(const Tensor& out, double low, double high, const Draw& place);
void normal(const Tensor& out, double mean, double deviation, const Draw& place);
void bernoulli(const Tensor& out, double p, const Draw& place);
void progression(const Tensor& out, Scalar start, Scalar step);
}  // namespace cpu

namespace cuda {
void uniform(const Tensor& out, double low, double high, const Draw& place);
void normal(const Tensor& out, double mean, double deviation, const Draw& place);
void bernoulli(const Tensor& out, double p, const Draw& place);
void progression(const Tensor& out, Scalar start, Scalar step);
}  // namespace cuda

}  // namespace glade
