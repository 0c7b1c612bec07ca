#pragma once
// Random and regular sequences of numbers. The same on CPU and GPU for a generator state.
#include <glade/core/generator.h>
#include <glade/core/tensor.h>

namespace glade {

/// In [low, high).
Tensor uniform(const Shape& shape, double low = 0, double high = 1, TensorOptions options = {},
               Generator& generator = default_generator());
Tensor normal(const Shape& shape, double mean = 0, double deviation = 1, TensorOptions options = {},
              Generator& generator = default_generator());
/// 1 with probability p, else 0.
Tensor bernoulli(const Shape& shape, double p, TensorOptions options = {}, Generator& generator = default_generator());
inline Tensor rand(const Shape& shape, TensorOptions options = {}) { return uniform(shape, 0, 1, options); }
inline Tensor randn(const Shape& shape, TensorOptions options = {}) { return normal(shape, 0, 1, options); }

/// start, start + step, ... below stop (above, for a negative step).
Tensor arange(Scalar start, Scalar stop, Scalar step = 1, TensorOptions options = {DType::int64, kCPU});
/// `count` numbers from start to stop, both included.
Tensor linspace(double start, double stop, std::int64_t count, TensorOptions options = {});
/// Ones on the diagonal.
Tensor eye(std::int64_t n, TensorOptions options = {});

}  // namespace glade
