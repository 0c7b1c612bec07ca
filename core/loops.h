#pragma once
// The geometry of an elementwise loop: broadcasting resolved to zero strides, dimensions merged where memory allows.
#include <array>
#include <cstdint>
#include <initializer_list>

#include <glade/core/shape.h>
#include <glade/core/tensor.h>

namespace glade {

template <int N>
struct LoopPlan {
  int ndim = 0;  ///< after merging; at least 1
  std::int64_t numel = 0;
  std::int64_t shape[kMaxDims];       ///< dimension 0 is the innermost in the first operand's memory
  std::int64_t strides[N][kMaxDims];  ///< in elements
  bool contiguous = false;            ///< one dimension, all strides 1
};

namespace detail {
void plan_loop(int operands, const Tensor* const* tensors, const Shape& shape, int& ndim, std::int64_t& numel, bool& contiguous,
               std::int64_t* plan_shape, std::int64_t (*plan_strides)[kMaxDims]);
}

/// Plans a loop over `shape`, to which every operand broadcasts.
template <class... Operands>
LoopPlan<sizeof...(Operands)> plan_loop(const Shape& shape, const Operands&... operands) {
  LoopPlan<sizeof...(Operands)> plan;
  const Tensor* tensors[] = {&operands...};
  detail::plan_loop(sizeof...(Operands), tensors, shape, plan.ndim, plan.numel, plan.contiguous, plan.shape, plan.strides);
  return plan;
}

/// Uninitialised memory for the result of an elementwise operation, of the shape to which the operands broadcast: in memory in
/// the order of the first operand that has this shape, where that one has no gaps; else row-major.
Tensor empty_result(const Shape& shape, DType dtype, std::initializer_list<const Tensor*> operands);

}  // namespace glade
