#pragma once
// Random and regular sequences of numbers. The same on CPU and GPU for a generator state.
#include <glade/core/generator.h>
#include <glade/core/tensor.h>

namespace glade {

/// In [low, high).
Tensor uniform(const Shape& shape, double low = 0, double high = 1, TensorOptions options = {},
               Generator& generator = default_generator());
/// Normal with this mean and standard deviation.
Tensor normal(const Shape& shape, double mean = 0, double deviation = 1, TensorOptions options = {},
              Generator& generator = default_generator());
/// 1 with probability p, else 0.
Tensor bernoulli(const Shape& shape, double p, TensorOptions options = {}, Generator& generator = default_generator());
/// int64 (or another type of integers) in [low, high), which may be 2^53 numbers wide.
Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape, TensorOptions options = {DType::int64, kCPU},
               Generator& generator = default_generator());
/// The numbers 0 to n - 1 in random order: int64 [n].
Tensor randperm(std::int64_t n, Device device = kCPU, Generator& generator = default_generator());
/// Draws `samples` positions in the last dimension of `weights` [n] or [rows, n], in proportion to the weights, which need not
/// add up to 1: int64 [samples] or [rows, samples]. ValueError where a row does not allow it: with weights that are negative or
/// not finite, without positive ones, or without replacement with fewer of them than samples. Waits for the device.
Tensor multinomial(const Tensor& weights, std::int64_t samples, bool replacement = false,
                   Generator& generator = default_generator());
/// uniform(shape) from default_generator(): in [0, 1).
inline Tensor rand(const Shape& shape, TensorOptions options = {}) { return uniform(shape, 0, 1, options); }
/// normal(shape) from default_generator(): mean 0, deviation 1.
inline Tensor randn(const Shape& shape, TensorOptions options = {}) { return normal(shape, 0, 1, options); }

/// start, start + step, ... below stop (above, for a negative step).
Tensor arange(Scalar start, Scalar stop, Scalar step = 1, TensorOptions options = {DType::int64, kCPU});
/// `count` numbers from start to stop, both included.
Tensor linspace(double start, double stop, std::int64_t count, TensorOptions options = {});
/// Ones on the diagonal.
Tensor eye(std::int64_t n, TensorOptions options = {});

}  // namespace glade
