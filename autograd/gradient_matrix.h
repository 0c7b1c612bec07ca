#pragma once
// Gradients side by side, for one product instead of several.
#include <memory>
#include <vector>

#include <glade/core/tensor.h>

namespace glade::autograd {

/// A matrix in whose rows the gradients of several tensors [..., n_i] have their places side by side. Who computes such a
/// gradient asks for its place by empty_gradient.
class GradientMatrix {
 public:
  /// For tensors with the same rows, each row-major in a storage of its own.
  explicit GradientMatrix(const Tensors& tensors);
  ~GradientMatrix();
  GradientMatrix(const GradientMatrix&) = delete;
  GradientMatrix& operator=(const GradientMatrix&) = delete;

  /// The gradients as [rows, sum of n_i], those that lie elsewhere copied to their places. Undefined where that would be much.
  Tensor gather(const Tensors& gradients);

 private:
  friend Tensor empty_gradient(const Tensor& x);
  struct Part {
    std::weak_ptr<Storage> storage;  // of the tensor
    std::int64_t first, columns;
    bool is_taken;  // since the last gather()
  };
  /// Undefined for a shape that does not divide into rows.
  Tensor place(const Part& part, const Shape& shape) const;

  std::vector<Part> parts_;
  std::int64_t rows_, columns_ = 0;
  TensorOptions options_;
  Tensor matrix_;  // from the first place that is asked for to gather()
};

/// Memory for a gradient of x: its place in a GradientMatrix, with gaps between the rows, where it has one that nobody has asked
/// for before; else row-major.
Tensor empty_gradient(const Tensor& x);

}  // namespace glade::autograd
