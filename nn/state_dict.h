#pragma once
// Tensors by name: what modules and optimisers save and load.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <glade/core/tensor.h>

namespace glade::nn {

/// Values by dotted name ("model.layers.0.attn.q_proj.weight").
using StateDict = std::map<std::string, Tensor>;
/// Parameters and the like in a fixed order, by the same names.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// ValueError, naming `what` and listing all missing, unexpected, mis-shaped and mistyped entries at once, unless `state`
/// fits `targets`. Floating-point entries fit any floating-point target, others only their own dtype. A tensor with
/// several names in `targets` needs only one of them in `state`.
void check_state(const std::string& what, const NamedTensors& targets, const StateDict& state);
/// Copies the entries of `state`, which must fit, into the tensors of `targets`.
void copy_state(const NamedTensors& targets, const StateDict& state);

}  // namespace glade::nn
