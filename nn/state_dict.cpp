#include <glade/nn/state_dict.h>

#include <set>

#include <glade/autograd/grad_mode.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/inplace.h>

namespace glade::nn {

void check_state(const std::string& what, const NamedTensors& targets, const StateDict& state) {
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
      if (!given.contains(target.impl())) missing.push_back(name);
      continue;
    }
    const Tensor& value = entry->second;
    if (!(value.shape() == target.shape()))
      misfits.push_back(fmt::format("{} is {}, expected {}", name, value.shape(), target.shape()));
    else if (value.dtype() != target.dtype() && !(is_floating(value.dtype()) && is_floating(target.dtype())))
      misfits.push_back(fmt::format("{} is {}, expected {}", name, value.dtype(), target.dtype()));
  }
  for (const auto& [name, value] : state)
    if (!names.contains(name)) unexpected.push_back(name);

  std::vector<std::string> complaints;
  if (!missing.empty()) complaints.push_back(fmt::format("missing {}", fmt::join(missing, ", ")));
  if (!unexpected.empty()) complaints.push_back(fmt::format("unexpected {}", fmt::join(unexpected, ", ")));
  if (!misfits.empty()) complaints.push_back(fmt::format("{}", fmt::join(misfits, ", ")));
  if (!complaints.empty()) fail<ValueError>("{}: {}", what, fmt::join(complaints, "; "));
}

void copy_state(const NamedTensors& targets, const StateDict& state) {
  NoGradGuard no_grad;
  for (const auto& [name, target] : targets)
    if (const auto entry = state.find(name); entry != state.end()) copy_(target, entry->second);
}

}  // namespace glade::nn
