#pragma once
// Checking derivatives by central differences.
#include <functional>

#include <glade/core/tensor.h>

namespace glade::autograd {

/// How far numeric and analytic derivatives may differ.
struct GradcheckOptions {
  double step = 1e-6;      ///< of the central difference
  double absolute = 1e-7;  ///< |numeric - analytic| <= absolute + relative * |numeric|
  double relative = 1e-5;  ///< See `absolute`.
};

/// Compares the gradients that backward gives for `function` with central differences, in every element of every input
/// that requires a gradient, for a fixed random weighting of every output. The inputs must be float64 leaves. Throws
/// AutogradError naming input, element and both values where they disagree; returns true otherwise. The inputs are as before
/// then, whatever `function` throws.
bool gradcheck(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs, GradcheckOptions options = {});
/// The same for the gradients of the gradients.
bool gradgradcheck(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs, GradcheckOptions options = {});

}  // namespace glade::autograd
