#include <glade/nn/module.h>

#include <algorithm>
#include <set>

#include <glade/core/format.h>

namespace glade::nn {
namespace {

// Makes x hold `value`'s memory, so that everyone who holds x sees it.
void replace_data(const Tensor& x, const Tensor& value) {
  TensorImpl& target = *x.impl();
  const TensorImpl& source = *value.impl();
  target.storage = source.storage;
  target.strides = source.strides;
  target.offset = source.offset;
  target.dtype = source.dtype;
  target.contiguous = source.contiguous;
}

template <class Place>
void convert(const NamedTensors& state, Place place) {
  for (const auto& [name, x] : state) {
    const Tensor gradient = x.grad();
    replace_data(x, to_data(x, place));
    if (gradient.defined()) x.set_grad(to_data(gradient, place));
  }
}

}  // namespace

NamedTensors Module::named_parameters() const {
  NamedTensors all, unique;
  collect("", false, all);
  std::set<const TensorImpl*> seen;
  for (auto& entry : all)
    if (seen.insert(entry.second.impl()).second) unique.push_back(std::move(entry));
  return unique;
}

Tensors Module::parameters() const {
  Tensors result;
  for (const auto& [name, x] : named_parameters()) result.push_back(x);
  return result;
}

NamedTensors Module::named_state() const {
  NamedTensors all;
  collect("", true, all);
  return all;
}

StateDict Module::state_dict() const {
  StateDict result;
  for (const auto& [name, x] : named_state()) result.emplace(name, x.detach());
  return result;
}

void Module::load_state_dict(const StateDict& state, bool strict) {
  const NamedTensors targets = named_state();
  check_state("load_state_dict", targets, infos_of(state), strict);
  copy_state(targets, state);
}

void Module::assign_state_dict(const StateDict& state) {
  const NamedTensors targets = named_state();
  check_state("assign_state_dict", targets, infos_of(state));
  for (const auto& [name, x] : targets) {
    const auto entry = state.find(name);
    if (entry == state.end()) continue;
    replace_data(x, contiguous_data(to_data(entry->second, x.dtype())));
    if (x.requires_grad()) x.set_grad({});
  }
}

void Module::train(bool mode) {
  training_ = mode;
  for (const auto& [name, module] : modules_) module->train(mode);
}

void Module::to(Device device) { convert(named_state(), device); }

void Module::to(DType dtype) {
  if (!is_floating(dtype)) fail<DTypeError>("Module::to: dtype is {}, expected a floating-point type", dtype);
  NamedTensors state = named_state();
  std::erase_if(state, [](const auto& entry) { return !is_floating(entry.second.dtype()); });
  convert(state, dtype);
}

void Module::zero_grad() {
  for (const auto& [name, x] : named_parameters()) x.set_grad({});
}

void Module::set_requires_grad(bool value) {
  for (Tensor& x : parameters()) x.set_requires_grad(value);
}

Tensor Module::register_parameter(const std::string& name, Tensor value) {
  check_name(name);
  value.set_requires_grad();
  parameters_.emplace_back(name, value);
  return value;
}

Tensor Module::register_buffer(const std::string& name, Tensor value) {
  check_name(name);
  buffers_.emplace_back(name, value);
  return value;
}

void Module::register_module(const std::string& name, Module& module) {
  check_name(name);
  if (module.contains(*this)) fail<ValueError>("Module: '{}' would be a part of itself", name);
  modules_.emplace_back(name, &module);
}

void Module::unregister(const std::string& name) {
  const auto has_name = [&](const auto& entry) { return entry.first == name; };
  std::erase_if(parameters_, has_name);
  std::erase_if(buffers_, has_name);
  std::erase_if(modules_, has_name);
}

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find_first_of("./") != std::string::npos)
    fail<ValueError>("Module: name '{}' is empty or contains '.' or '/'", name);
  const auto is_taken = [&](const auto& entries) {
    return std::ranges::any_of(entries, [&](const auto& e) { return e.first == name; });
  };
  if (is_taken(parameters_) || is_taken(buffers_) || is_taken(modules_)) fail<ValueError>("Module: name '{}' is taken", name);
}

bool Module::contains(const Module& other) const {
  return this == &other || std::ranges::any_of(modules_, [&](const auto& entry) { return entry.second->contains(other); });
}

void Module::collect(const std::string& prefix, bool buffers, NamedTensors& out) const {
  for (const auto& [name, x] : parameters_) out.emplace_back(prefix + name, x);
  if (buffers)
    for (const auto& [name, x] : buffers_) out.emplace_back(prefix + name, x);
  for (const auto& [name, module] : modules_) module->collect(prefix + name + '.', buffers, out);
}

}  // namespace glade::nn
