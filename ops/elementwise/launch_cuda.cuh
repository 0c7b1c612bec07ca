#pragma once
// The Launcher of the CUDA backend.
#include <array>
#include <memory>

#include <glade/core/copy_kernels.h>
#include <glade/core/cuda/loops.cuh>
#include <glade/ops/elementwise/launch.h>

namespace glade::cuda {

/// The gradient and what was saved have the result's shape.
template <class Op, class T, class... In>
constexpr bool detail::kHasRows<functors::UnaryBackwardBody<Op, T>, In...> = false;

namespace detail {

/// Below so many elements one kernel more costs what it saves.
constexpr std::int64_t kMinAcross = std::int64_t{1} << 20;

/// Whether neighbours in the result's memory lie far apart in that of an input, and neighbours in the input's far apart in the
/// result's: a sector is read for every element.
template <int N>
bool lies_across(const LoopPlan<N>& plan, int operand) {
  const auto& strides = plan.strides[operand];
  if (plan.numel < kMinAcross || plan.strides[0][0] != 1 || plan.shape[0] < 16 || strides[0] == 0 || strides[0] == 1)
    return false;
  bool is_dense = false;
  for (int d = 1; d < plan.ndim; ++d) {
    if (strides[d] == 0) return false;  // a copy would be larger than the input
    is_dense |= strides[d] == 1 && plan.shape[d] >= 16;
  }
  return is_dense;
}

/// A copy of such an input in the result's order, for which the plan is changed; null for other inputs, and where memory is
/// short.
template <int N>
std::unique_ptr<Scratch> in_order(Device device, LoopPlan<N>& plan, int operand, std::size_t size, const void* x) {
  if (!lies_across(plan, operand)) return nullptr;
  std::unique_ptr<Scratch> copy;
  try {
    copy = std::make_unique<Scratch>(static_cast<std::size_t>(plan.numel) * size, device);
  } catch (const OutOfMemoryError&) {
    return nullptr;
  }
  LoopPlan<2> both;
  both.ndim = plan.ndim;
  both.numel = plan.numel;
  std::int64_t stride = 1;
  for (int d = 0; d < plan.ndim; stride *= plan.shape[d++]) {
    both.shape[d] = plan.shape[d];
    both.strides[0][d] = stride;
    both.strides[1][d] = plan.strides[operand][d];
    plan.strides[operand][d] = stride;
  }
  copy_bits(device, both, size, copy->data(), x);
  return copy;
}

/// Makes one of neighbouring dimensions through which all operands step evenly.
template <int N>
void merge_dimensions(LoopPlan<N>& plan) {
  int last = 0;
  for (int d = 1; d < plan.ndim; ++d) {
    bool merges = true;
    for (const auto& strides : plan.strides) merges &= strides[d] == strides[last] * plan.shape[last];
    if (merges) {
      plan.shape[last] *= plan.shape[d];
      continue;
    }
    plan.shape[++last] = plan.shape[d];
    for (auto& strides : plan.strides) strides[last] = strides[d];
  }
  plan.ndim = last + 1;
}

}  // namespace detail

struct DeviceLoop {
  Device device;
  template <int N, class Body, class Out, class... In>
  void operator()(LoopPlan<N> plan, const Body& body, Out* out, const In*... in) const {
    if (plan.numel < detail::kMinAcross || plan.ndim == 1) return elementwise(device, plan, body, out, in...);
    int operand = 0;
    bool any = false;
    const auto straight = [&]<class T>(const T* x) {
      auto copy = detail::in_order(device, plan, ++operand, sizeof(T), x);
      any |= copy != nullptr;
      return copy;
    };
    const std::array<std::unique_ptr<Scratch>, sizeof...(In)> copies{straight(in)...};
    if (any) detail::merge_dimensions(plan);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      elementwise(device, plan, body, out, (copies[I] != nullptr ? copies[I]->template data<const In>() : in)...);
    }(std::index_sequence_for<In...>{});
  }
};

inline Launcher<DeviceLoop> launcher(const Tensor& out) { return {DeviceLoop{out.device()}}; }

}  // namespace glade::cuda
