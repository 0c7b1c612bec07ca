#pragma once
// Kernels of ops/random. `out` is row-major and new; what they write is the same on every device.
#include <glade/core/generator.h>
#include <glade/core/tensor.h>

namespace glade {

namespace cpu {
void uniform(const Tensor& out, double low, double high, Generator::State state);
void normal(const Tensor& out, double mean, double deviation, Generator::State state);
void bernoulli(const Tensor& out, double p, Generator::State state);
void progression(const Tensor& out, Scalar start, Scalar step);
}  // namespace cpu

namespace cuda {
void uniform(const Tensor& out, double low, double high, Generator::State state);
void normal(const Tensor& out, double mean, double deviation, Generator::State state);
void bernoulli(const Tensor& out, double p, Generator::State state);
void progression(const Tensor& out, Scalar start, Scalar step);
}  // namespace cuda

}  // namespace glade
