#include <glade/core/loops.h>

#include <cstdlib>

namespace glade::detail {

void plan_loop(int operands, const Tensor* const* tensors, const Shape& shape, int& ndim, std::int64_t& numel, bool& contiguous,
               std::int64_t* plan_shape, std::int64_t (*plan_strides)[kMaxDims]) {
  numel = shape.numel();
  contiguous = true;
  for (int i = 0; i < operands && contiguous; ++i) contiguous = tensors[i]->is_contiguous() && tensors[i]->shape() == shape;
  ndim = 1;
  plan_shape[0] = numel;
  for (int i = 0; i < operands; ++i) plan_strides[i][0] = 1;
  if (contiguous || numel == 0) return;

  auto stride = [&](int operand, int d) -> std::int64_t {
    const Tensor& x = *tensors[operand];
    const int own = d - (shape.ndim() - x.ndim());
    return own < 0 || x.shape()[own] == 1 ? 0 : x.strides()[own];
  };
  // In the order in which the first operand lies in memory, as far as it is known: an in-place loop over a transposed matrix is
  // one over its rows.
  int order[kMaxDims], count = 0;
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    int place = count++;
    for (; place > 0 && std::abs(stride(0, d)) < std::abs(stride(0, order[place - 1])); --place) order[place] = order[place - 1];
    order[place] = d;
  }
  // From the innermost dimension out; a dimension merges into the last one where every operand steps on evenly.
  ndim = 0;
  for (int k = 0; k < count; ++k) {
    const int d = order[k];
    bool merge = ndim > 0;
    for (int i = 0; i < operands && merge; ++i) merge = stride(i, d) == plan_strides[i][ndim - 1] * plan_shape[ndim - 1];
    if (merge) {
      plan_shape[ndim - 1] *= shape[d];
      continue;
    }
    plan_shape[ndim] = shape[d];
    for (int i = 0; i < operands; ++i) plan_strides[i][ndim] = stride(i, d);
    ++ndim;
  }
  if (ndim == 0) {  // one element
    ndim = 1;
    plan_shape[0] = 1;
    for (int i = 0; i < operands; ++i) plan_strides[i][0] = 1;
  }
  contiguous = ndim == 1;
  for (int i = 0; i < operands && contiguous; ++i) contiguous = plan_strides[i][0] == 1;
}

}  // namespace glade::detail

namespace glade {

namespace {

/// Whether x's elements fill their memory without gaps, in some order of its dimensions.
bool is_dense(const Tensor& x) {
  std::int64_t step = 1;  // the stride of the next dimension outwards
  for (std::int64_t found = 1; found != 0; step *= std::max<std::int64_t>(found, 1)) {
    found = 0;
    for (int d = 0; d < x.ndim(); ++d)
      if (x.shape()[d] > 1 && x.strides()[d] == step) found = x.shape()[d];
  }
  return step == x.numel();
}

}  // namespace

Tensor empty_result(const Shape& shape, DType dtype, std::initializer_list<const Tensor*> operands) {
  for (const Tensor* x : operands) {
    if (!(x->shape() == shape)) continue;
    const Tensor y = empty(shape, {dtype, x->device()});
    return x->is_contiguous() || !is_dense(*x) ? y : y.as_strided(shape, x->strides(), 0);
  }
  return empty(shape, {dtype, (*operands.begin())->device()});
}

}  // namespace glade
