#pragma once
// Memory for time: computing again in backward what forward would have to keep.
#include <functional>

#include <glade/core/tensor.h>

namespace glade::autograd {

/// function(inputs), of which only the inputs are kept for backward; there the function is called once more. `parameters` are the
/// other tensors that it reads and that want gradients. Inputs and parameters may be undefined or need none. Random numbers of
/// the default generator are drawn from the same place again, but not where the call is captured in a CUDA graph.
Tensors recompute(std::function<Tensors(const Tensors&)> function, const Tensors& inputs, const Tensors& parameters);

}  // namespace glade::autograd
