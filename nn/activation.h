#pragma once
// Functions without parameters as modules, for nn::Sequential.
#include <glade/nn/module.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::nn {

/// max(x, 0)
class ReLU : public UnaryModule {
 public:
  Tensor forward(const Tensor& x) const override { return relu(x); }
};

/// x * Phi(x), Phi the normal distribution, or its approximation by tanh.
class GELU : public UnaryModule {
 public:
  /// `form` chooses the exact function or its approximation by tanh.
  explicit GELU(GeluForm form = GeluForm::erf) : form_(form) {}
  Tensor forward(const Tensor& x) const override { return gelu(x, form_); }
  GeluForm form() const { return form_; }  ///< Which of the two it computes.

 private:
  GeluForm form_;
};

/// x * sigmoid(x)
class SiLU : public UnaryModule {
 public:
  Tensor forward(const Tensor& x) const override { return silu(x); }
};

/// The hyperbolic tangent.
class Tanh : public UnaryModule {
 public:
  Tensor forward(const Tensor& x) const override { return tanh(x); }
};

/// 1 / (1 + e^-x)
class Sigmoid : public UnaryModule {
 public:
  Tensor forward(const Tensor& x) const override { return sigmoid(x); }
};

/// log(1 + e^x)
class Softplus : public UnaryModule {
 public:
  Tensor forward(const Tensor& x) const override { return softplus(x); }
};

/// Probabilities along a dimension.
class Softmax : public UnaryModule {
 public:
  explicit Softmax(std::int64_t dim = -1) : dim_(dim) {}  ///< `dim` counts from the end where negative.
  Tensor forward(const Tensor& x) const override { return softmax(x, dim_); }
  std::int64_t dim() const { return dim_; }  ///< The dimension along which the results add up to 1.

 private:
  std::int64_t dim_;
};

/// The dimensions from `start` to `end` as one.
class Flatten : public UnaryModule {
 public:
  /// By default all dimensions but the first, which is the batch.
  explicit Flatten(std::int64_t start = 1, std::int64_t end = -1) : start_(start), end_(end) {}
  Tensor forward(const Tensor& x) const override { return flatten(x, start_, end_); }
  std::int64_t start() const { return start_; }  ///< The first dimension that is joined.
  std::int64_t end() const { return end_; }      ///< The last dimension that is joined, included.

 private:
  std::int64_t start_, end_;
};

/// x itself.
class Identity : public UnaryModule {
 public:
  Tensor forward(const Tensor& x) const override { return x; }
};

}  // namespace glade::nn
