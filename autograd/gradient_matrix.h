#pragma once
// Gradients side by side, for one product instead of several.
#include <vector>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// A matrix in one backward pass, in whose rows the gradients of a node's outputs have their places side by side.
class GradientMatrix {
 public:
  explicit GradientMatrix(const GradientColumns& columns);

  /// The place of gradient i, with gaps between the rows. Undefined for a tensor `like` that does not have as many elements of
  /// that dtype in such rows, and where the place was given before.
  Tensor take_place(std::size_t i, const Tensor& like);
  /// The gradients as [rows, sum of columns], after copying those that lie elsewhere. Undefined where too many do.
  Tensor gather(const Tensors& gradients) const;

 private:
  struct Part {
    std::int64_t first, columns;
    bool is_taken = false;
  };
  /// Undefined for a shape that does not divide into rows.
  Tensor place(const Part& part, const Shape& shape) const;

  std::vector<Part> parts_;
  std::int64_t columns_ = 0;
  Tensor matrix_;
};

}  // namespace glade::autograd
