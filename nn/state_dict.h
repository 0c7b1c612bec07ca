#pragma once
// Tensors by name: what modules and optimizers save and load.
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

/// What a tensor is, without its values.
struct TensorInfo {
  DType dtype = DType::float32;  ///< The type of its elements.
  Shape shape;                   ///< Sizes of its dimensions.
};
using TensorInfos = std::map<std::string, TensorInfo>;  ///< What tensors are, by name.
TensorInfos infos_of(const StateDict& state);           ///< The dtype and shape of each entry.

/// ValueError, naming `what` and listing all missing, unexpected, mis-shaped and mistyped entries at once, unless `state`
/// fits `targets`. Floating-point entries fit any floating-point target, others only their own dtype. A tensor with
/// several names in `targets` needs only one of them in `state`. Without `strict`, entries may be missing or unexpected.
void check_state(const std::string& what, const NamedTensors& targets, const TensorInfos& state, bool strict = true);
/// Whether both are the same elements of the same memory, as tied parameters are.
bool is_same_view(const Tensor& a, const Tensor& b);
/// Forgets the gradients of the tensors, or with set_to_none false fills them with zeros.
void clear_gradients(const NamedTensors& tensors, bool set_to_none);
/// Copies the entries of `state`, which must fit, into the tensors of `targets`.
void copy_state(const NamedTensors& targets, const StateDict& state);

}  // namespace glade::nn
