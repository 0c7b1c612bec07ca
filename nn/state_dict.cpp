#include <glade/nn/state_dict.h>

#include <set>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/inplace.h>

namespace glade::nn {

TensorInfos infos_of(const StateDict& state) {
  TensorInfos info;
  for (const auto& [name, x] : state) info.emplace(name, TensorInfo{x.dtype(), x.shape()});
  return info;
}

void check_state(const std::string& what, const NamedTensors& targets, const TensorInfos& state, bool strict) {
  std::set<const TensorImpl*> given;
  std::set<std::string> names;
  for (const auto& [name, target] : targets) {
    names.insert(name);
    if (state.contains(name)) given.insert(target.impl());
  }

  std::vector<std::string> missing, unexpected, misfits;
  for (const auto& [name, target] : targets) {
    const auto entry = state.find(name);
    if (entry == state.end()) {
      if (strict && !given.contains(target.impl())) missing.push_back(name);
      continue;
    }
    const TensorInfo& value = entry->second;
    if (!(value.shape == target.shape()))
      misfits.push_back(fmt::format("{} is {}, expected {}", name, value.shape, target.shape()));
    else if (value.dtype != target.dtype() && !(is_floating(value.dtype) && is_floating(target.dtype())))
      misfits.push_back(fmt::format("{} is {}, expected {}", name, value.dtype, target.dtype()));
  }
  for (const auto& [name, value] : state)
    if (strict && !names.contains(name)) unexpected.push_back(name);

  std::vector<std::string> complaints;
  if (!missing.empty()) complaints.push_back(fmt::format("missing {}", fmt::join(missing, ", ")));
  if (!unexpected.empty()) complaints.push_back(fmt::format("unexpected {}", fmt::join(unexpected, ", ")));
  if (!misfits.empty()) complaints.push_back(fmt::format("{}", fmt::join(misfits, ", ")));
  if (!complaints.empty()) fail<ValueError>("{}: {}", what, fmt::join(complaints, "; "));
}

bool is_same_view(const Tensor& a, const Tensor& b) {
  return a.raw_data() == b.raw_data() && a.dtype() == b.dtype() && a.shape() == b.shape() && a.strides() == b.strides();
}

void clear_gradients(const NamedTensors& tensors, bool set_to_none) {
  for (const auto& [name, x] : tensors) {
    if (set_to_none) x.set_grad({});
    else if (const Tensor gradient = x.grad(); gradient.defined()) fill_data(gradient, 0);
  }
}

void copy_state(const NamedTensors& targets, const StateDict& state) {
  NoGradGuard no_grad;
  for (const auto& [name, target] : targets)
    if (const auto entry = state.find(name); entry != state.end()) copy_(target, entry->second);
}

}  // namespace glade::nn
