#pragma once
// Modules in a row.
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <glade/nn/module.h>

namespace glade::nn {

/// Applies its parts one after the other. They are named "0", "1", ...; functions count, but hold nothing:
///
///     nn::Sequential model;
///     model.add<nn::Linear>(2, 16);
///     model.add(tanh);
///     model.add<nn::Linear>(16, 1);
class Sequential : public UnaryModule {
 public:
  /// Appends a module made from the arguments and returns it.
  template <class M, class... Args>
    requires std::is_base_of_v<UnaryModule, M>
  M& add(Args&&... args) {
    auto module = std::make_unique<M>(std::forward<Args>(args)...);
    M& result = *module;
    register_module(std::to_string(parts_.size()), result);
    parts_.emplace_back([module = std::shared_ptr<M>(std::move(module))](const Tensor& x) { return module->forward(x); });
    return result;
  }
  /// Appends a function without parameters, an activation for instance.
  void add(std::function<Tensor(const Tensor&)> function) { parts_.push_back(std::move(function)); }

  Tensor forward(const Tensor& x) const override {
    Tensor y = x;
    for (const auto& part : parts_) y = part(y);
    return y;
  }
  std::size_t size() const { return parts_.size(); }  ///< How many parts it has, functions included.

 private:
  std::vector<std::function<Tensor(const Tensor&)>> parts_;
};

/// Modules of one kind, named "0", "1", ...
template <class M>
class ModuleList : public Module {
 public:
  /// Appends a module made from the arguments and returns it.
  template <class... Args>
  M& emplace_back(Args&&... args) {
    modules_.push_back(std::make_unique<M>(std::forward<Args>(args)...));
    register_module(std::to_string(modules_.size() - 1), *modules_.back());
    return *modules_.back();
  }
  std::size_t size() const { return modules_.size(); }  ///< How many modules it has.
  M& operator[](std::size_t i) { return *modules_[i]; }
  const M& operator[](std::size_t i) const { return *modules_[i]; }

 private:
  std::vector<std::unique_ptr<M>> modules_;
};

}  // namespace glade::nn
