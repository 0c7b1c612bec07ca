#pragma once
#include <glade/core/tensor.h>

namespace glade::nn::optim {

/// Scales the gradients of `parameters` together so that their norm is at most max_norm, and returns the norm before, a
/// float64 scalar on their device (nothing waits for it). NaN where a gradient is not finite. ValueError for a max_norm
/// that is not positive; DeviceError where the gradients are on several devices.
Tensor clip_grad_norm_(const Tensors& parameters, double max_norm);

}  // namespace glade::nn::optim
