#pragma once
// A linear map of values that are cheaper to make again than to keep until backward.
#include <functional>

#include <glade/autograd/node.h>

namespace glade {

/// Values [..., in] and how they were made.
struct Remade {
  Tensors inputs;  ///< that gradients flow to; some may be undefined
  Tensor values;   ///< not recorded
  /// The same values from the inputs, by operations that the tape records.
  std::function<Tensor(const Tensors& inputs)> compose;
  /// From the gradient [rows, out] of the map and its weight [out, in] in the values' dtype to the gradients of the inputs.
  /// Leaves the values in `values`, row-major memory of their shape, where the gradient of the values may have been before.
  std::function<Tensors(const autograd::Node& node, const Tensors& inputs, const Tensor& grad, const Tensor& weight,
                        const Tensor& values)>
      backward;
};

/// linears(x.values, {weight}, {}, {addend})[0], recorded under `name`, with the inputs, the weight and the addend as the node's
/// inputs. The values are not kept.
Tensor linear_of(const char* name, const Remade& x, const Tensor& weight, const Tensor& addend);

}  // namespace glade
