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

NamedTensors each_once(NamedTensors all) {
  std::set<const TensorImpl*> seen;
  std::erase_if(all, [&](const auto& entry) { return !seen.insert(entry.second.impl()).second; });
  return all;
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
  NamedTensors all;
  collect("", Kind::parameters, all);
  return each_once(std::move(all));
}

NamedTensors Module::named_buffers() const {
  NamedTensors all;
  collect("", Kind::buffers, all);
  return each_once(std::move(all));
}

Tensors Module::parameters() const {
  Tensors result;
  for (const auto& [name, x] : named_parameters()) result.push_back(x);
  return result;
}

NamedTensors Module::named_state() const {
  NamedTensors all;
  collect("", Kind::saved, all);
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

void Module::to(Device device) {
  NamedTensors all;
  collect("", Kind::all, all);
  convert(all, device);
}

void Module::to(DType dtype) {
  if (!is_floating(dtype)) fail<DTypeError>("Module::to: dtype is {}, expected a floating-point type", dtype);
  NamedTensors state;
  collect("", Kind::all, state);
  std::erase_if(state, [](const auto& entry) { return !is_floating(entry.second.dtype()); });
  convert(state, dtype);
}

void Module::apply(const std::function<void(Module&)>& f) {
  for (const auto& [name, module] : modules_) module->apply(f);
  f(*this);
}

void Module::zero_grad(bool set_to_none) { clear_gradients(named_parameters(), set_to_none); }

void Module::set_requires_grad(bool value) {
  for (Tensor& x : parameters()) x.set_requires_grad(value);
}

Tensor Module::register_parameter(const std::string& name, Tensor value, const Tensor* member) {
  check_name(name);
  if (value.defined()) value.set_requires_grad();
  parameters_.push_back({name, member != nullptr ? Tensor() : value, member});
  return value;
}

Tensor Module::register_buffer(const std::string& name, Tensor value, bool persistent) {
  check_name(name);
  buffers_.push_back({name, value, nullptr, persistent});
  return value;
}

void Module::register_module(const std::string& name, Module& module) {
  check_name(name);
  if (module.contains(*this)) fail<ValueError>("Module: '{}' would be a part of itself", name);
  modules_.emplace_back(name, &module);
}

void Module::set_parameter(const std::string& name, Tensor value) {
  if (part(name) != Part::parameter) {
    unregister(name);
    register_parameter(name, std::move(value));
    return;
  }
  value.set_requires_grad();
  *std::ranges::find(parameters_, name, &Entry::name) = {name, std::move(value), nullptr};
}

void Module::set_buffer(const std::string& name, Tensor value, bool persistent) {
  if (const auto found = std::ranges::find(buffers_, name, &Entry::name); found != buffers_.end()) {
    *found = {name, std::move(value), nullptr, persistent};
    return;
  }
  unregister(name);
  register_buffer(name, std::move(value), persistent);
}

void Module::set_module(const std::string& name, Module& module) {
  if (module.contains(*this)) fail<ValueError>("Module: '{}' would be a part of itself", name);
  if (const auto found = std::ranges::find(modules_, name, &std::pair<std::string, Module*>::first); found != modules_.end()) {
    found->second = &module;
    return;
  }
  unregister(name);
  register_module(name, module);
}

Module::Part Module::part(const std::string& name) const {
  if (std::ranges::find(parameters_, name, &Entry::name) != parameters_.end()) return Part::parameter;
  if (std::ranges::find(modules_, name, &std::pair<std::string, Module*>::first) != modules_.end()) return Part::module;
  const auto buffer = std::ranges::find(buffers_, name, &Entry::name);
  return buffer == buffers_.end() ? Part::none : buffer->is_saved ? Part::buffer : Part::unsaved_buffer;
}

void Module::unregister(const std::string& name) {
  const auto has_name = [&](const Entry& entry) { return entry.name == name; };
  std::erase_if(parameters_, has_name);
  std::erase_if(buffers_, has_name);
  std::erase_if(modules_, [&](const auto& entry) { return entry.first == name; });
}

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find_first_of("./") != std::string::npos)
    fail<ValueError>("Module: name '{}' is empty or contains '.' or '/'", name);
  if (part(name) != Part::none) fail<ValueError>("Module: name '{}' is taken", name);
}

bool Module::contains(const Module& other) const {
  return this == &other || std::ranges::any_of(modules_, [&](const auto& entry) { return entry.second->contains(other); });
}

void Module::append(const std::vector<Entry>& entries, bool saved_alone, const std::string& prefix, NamedTensors& out) {
  for (const Entry& entry : entries)
    if (entry.get().defined() && (entry.is_saved || !saved_alone)) out.emplace_back(prefix + entry.name, entry.get());
}

void Module::collect(const std::string& prefix, Kind kind, NamedTensors& out) const {
  if (kind != Kind::buffers) append(parameters_, false, prefix, out);
  if (kind != Kind::parameters) append(buffers_, kind == Kind::saved, prefix, out);
  for (const auto& [name, module] : modules_) module->collect(prefix + name + '.', kind, out);
}

}  // namespace glade::nn
