#include <glade/autograd/gradient_matrix.h>

#include <utility>

namespace glade::autograd {

GradientMatrix::GradientMatrix(const GradientColumns& columns) {
  for (const std::int64_t n : columns.columns) {
    parts_.push_back({columns_, n});
    columns_ += n;
  }
  matrix_ = empty({columns.rows, columns_}, columns.options);
}

Tensor GradientMatrix::place(const Part& part, const Shape& shape) const {
  Strides strides = shape.contiguous_strides();
  int d = shape.ndim() - 1;
  std::int64_t size = 1;
  for (; d >= 0 && size < part.columns; --d) size *= shape[d];
  if (size != part.columns) return {};
  for (std::int64_t step = columns_; d >= 0; step *= shape[d--]) strides[d] = step;
  return matrix_.as_strided(shape, strides, part.first);
}

Tensor GradientMatrix::take_place(std::size_t i, const Tensor& like) {
  Part& part = parts_[i];
  const bool fits =
      like.numel() == matrix_.size(0) * part.columns && like.dtype() == matrix_.dtype() && like.device() == matrix_.device();
  if (part.is_taken || !fits) return {};
  Tensor taken = place(part, like.shape());
  part.is_taken = taken.defined();
  return taken;
}

Tensor GradientMatrix::gather(const Tensors& gradients) const {
  std::vector<std::pair<Tensor, Tensor>> elsewhere;  // where it is to come, and what
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const Tensor& gradient = gradients[i];
    const Tensor to = gradient.defined() ? place(part, gradient.shape()) : Tensor();
    if (to.defined() && gradient.raw_data() == to.raw_data() && gradient.strides() == to.strides()) continue;
    // What was left in a place but is not the gradient may still be somebody's.
    columns += to.defined() && !part.is_taken ? part.columns : columns_;
    elsewhere.emplace_back(to, gradient);
  }
  constexpr std::int64_t kMuch = 8;
  if (columns > columns_ / kMuch) return {};
  for (const auto& [to, gradient] : elsewhere) copy_data(to, gradient);
  return matrix_;
}

}  // namespace glade::autograd
