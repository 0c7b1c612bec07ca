#include <glade/autograd/gradient_matrix.h>

#include <mutex>
#include <unordered_map>
#include <utility>

namespace glade::autograd {

namespace {

std::mutex& mutex() {  // of all that follows
  static auto& mutex = *new std::mutex;
  return mutex;
}

/// Which part of which matrix is the place of a gradient, by the storage of the tensor that it is for.
std::unordered_map<const Storage*, std::pair<GradientMatrix*, std::size_t>>& places() {
  static auto& places = *new std::unordered_map<const Storage*, std::pair<GradientMatrix*, std::size_t>>;
  return places;
}

}  // namespace

GradientMatrix::GradientMatrix(const Tensors& tensors)
    : rows_(tensors[0].numel() / tensors[0].size(-1)), options_(tensors[0].options()) {
  std::lock_guard lock(mutex());
  for (const Tensor& x : tensors) {
    places()[x.storage().get()] = {this, parts_.size()};
    parts_.push_back({x.storage(), columns_, x.size(-1), false});
    columns_ += x.size(-1);
  }
}

GradientMatrix::~GradientMatrix() {
  std::lock_guard lock(mutex());
  std::erase_if(places(), [this](const auto& place) { return place.second.first == this; });
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

Tensor GradientMatrix::gather(const Tensors& gradients) {
  std::lock_guard lock(mutex());
  Tensor matrix = matrix_;
  std::vector<std::pair<Tensor, Tensor>> elsewhere;  // where it is to come, and what
  std::int64_t columns = 0;
  for (std::size_t i = 0; i < parts_.size() && matrix.defined(); ++i) {
    Part& part = parts_[i];
    const Tensor& gradient = gradients[i];
    const Tensor to = gradient.defined() ? place(part, gradient.shape()) : Tensor();
    const bool is_taken = std::exchange(part.is_taken, false);
    if (to.defined() && gradient.raw_data() == to.raw_data() && gradient.strides() == to.strides()) continue;
    // What was left in a place but is not the gradient may still be somebody's.
    columns += to.defined() && !is_taken ? part.columns : columns_;
    elsewhere.emplace_back(to, gradient);
  }
  matrix_ = Tensor();
  constexpr std::int64_t kMuch = 8;
  if (!matrix.defined() || columns > columns_ / kMuch) return {};
  for (const auto& [to, gradient] : elsewhere) copy_data(to, gradient);
  return matrix;
}

Tensor empty_gradient(const Tensor& x) {
  std::lock_guard lock(mutex());
  const auto found = places().find(x.storage().get());
  if (found == places().end()) return empty_like(x);
  GradientMatrix& matrix = *found->second.first;
  GradientMatrix::Part& part = matrix.parts_[found->second.second];
  const bool is_whole = x.is_contiguous() && x.numel() == matrix.rows_ * part.columns && x.dtype() == matrix.options_.dtype;
  if (part.storage.lock() != x.storage() || !is_whole || part.is_taken) return empty_like(x);
  if (!matrix.matrix_.defined()) matrix.matrix_ = empty({matrix.rows_, matrix.columns_}, matrix.options_);
  const Tensor place = matrix.place(part, x.shape());
  part.is_taken = place.defined();
  return part.is_taken ? place : empty_like(x);
}

}  // namespace glade::autograd
