#include <glade/core/loops.h>

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
  // From the innermost dimension out; a dimension merges into the last one where every operand steps on evenly.
  ndim = 0;
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
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
