#pragma once
// The Launcher of the CUDA backend.
#include <glade/core/cuda/loops.cuh>
#include <glade/ops/elementwise/launch.h>

namespace glade::cuda {

/// The gradient and what was saved have the result's shape.
template <class Op, class T, class... In>
constexpr bool detail::kHasRows<functors::UnaryBackwardBody<Op, T>, In...> = false;

struct DeviceLoop {
  Device device;
  template <class Plan, class Body, class Out, class... In>
  void operator()(const Plan& plan, const Body& body, Out* out, const In*... in) const {
    elementwise(device, plan, body, out, in...);
  }
};

inline Launcher<DeviceLoop> launcher(const Tensor& out) { return {DeviceLoop{out.device()}}; }

}  // namespace glade::cuda
