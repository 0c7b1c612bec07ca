#pragma once
// Module: parameters, buffers and submodules by name. A layer derives from it, registers what it owns and has a `forward`
// of its own:
//
//     struct Model : nn::Module {
//       nn::Linear hidden{2, 16}, output{16, 1};
//       Model() {
//         register_module("hidden", hidden);
//         register_module("output", output);
//       }
//       Tensor forward(const Tensor& x) const { return output(tanh(hidden(x))); }
//     };
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <glade/nn/state_dict.h>

namespace glade::nn {

/// What layers and models derive from: it knows parameters, buffers and submodules by name.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  // Parents know their submodules by address.
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// The parameters of this module and all below, in the order of registration, a shared one under its first name only.
  NamedTensors named_parameters() const;
  Tensors parameters() const;  ///< named_parameters() without the names.
  /// Every parameter and persistent buffer, a shared one under each of its names. The values are the module's own, not copies.
  StateDict state_dict() const;
  /// Copies `state` into the parameters and buffers. ValueError that lists missing, unexpected, mis-shaped and mistyped
  /// entries at once; nothing is changed then. See check_state for what fits; without `strict`, entries may be missing or
  /// unexpected.
  void load_state_dict(const StateDict& state, bool strict = true);
  /// The same without copying: the parameters and buffers take the entries' memory and devices, converted where the dtype
  /// differs, and forget their gradients. Who else holds the entries sees every later change.
  void assign_state_dict(const StateDict& state);
  /// What state_dict() holds, in the order of registration.
  NamedTensors named_state() const;
  /// The buffers of this module and all below, in the order of registration, a shared one under its first name only.
  NamedTensors named_buffers() const;
  /// The submodules right below this one, in the order of registration.
  const std::vector<std::pair<std::string, Module*>>& named_children() const { return modules_; }

  /// Sets the mode of this module and all below (layers like Dropout differ between training and evaluation).
  void train(bool mode = true);
  void eval() { train(false); }                ///< train(false)
  bool training() const { return training_; }  ///< Whether it is in training mode, as at first.
  /// Calls f for all modules below, the innermost first, and for this one.
  void apply(const std::function<void(Module&)>& f);

  /// Moves parameters, buffers and gradients; the tensors stay the same ones, so shared ones stay shared and optimizers
  /// keep them. Not between a forward pass and its backward.
  void to(Device device);
  /// Converts floating-point parameters, buffers and gradients, in the same way.
  void to(DType dtype);

  /// Forgets the gradients of all parameters, or with set_to_none false fills them with zeros.
  void zero_grad(bool set_to_none = true);
  /// Whether gradients are wanted for the parameters.
  void set_requires_grad(bool value);

 protected:
  /// Registers a tensor, which from here on requires a gradient, and returns it. With `member`, in which the layer keeps it,
  /// an assignment to the member replaces the parameter: `head.weight = embedding.weight` ties the two. An undefined value is a
  /// parameter that the layer can do without, and does not count as one while it is undefined. ValueError for a name that is
  /// empty, taken or contains '.' or '/'.
  Tensor register_parameter(const std::string& name, Tensor value, const Tensor* member = nullptr);
  /// Registers a tensor that is moved and, if persistent, saved, but not trained, and returns it.
  Tensor register_buffer(const std::string& name, Tensor value, bool persistent = true);
  /// Registers a submodule, which must live as long as this module: a member, or what a member owns. ValueError for a name as
  /// above, and for a module that contains this one.
  void register_module(const std::string& name, Module& module);
  /// The same for names that may be taken: what has the name is replaced in its place, or forgotten if it is of another kind.
  void set_parameter(const std::string& name, Tensor value);
  void set_buffer(const std::string& name, Tensor value, bool persistent = true);  ///< As set_parameter.
  void set_module(const std::string& name, Module& module);                        ///< As set_parameter.
  /// Forgets what is registered under a name, if anything.
  void unregister(const std::string& name);

  /// The kinds of what is registered.
  enum class Part { none, parameter, buffer, unsaved_buffer, module };
  Part part(const std::string& name) const;  ///< What is registered under a name in this module itself.

 private:
  void check_name(const std::string& name) const;
  bool contains(const Module& other) const;
  enum class Kind { parameters, buffers, saved, all };
  /// Appends what this module and all below have of a kind.
  void collect(const std::string& prefix, Kind kind, NamedTensors& out) const;

  struct Entry {
    std::string name;
    Tensor value;
    const Tensor* member;  // that holds it, or null
    bool is_saved = true;
    const Tensor& get() const { return member != nullptr ? *member : value; }
  };
  static void append(const std::vector<Entry>& entries, bool saved_alone, const std::string& prefix, NamedTensors& out);

  std::vector<Entry> parameters_, buffers_;
  std::vector<std::pair<std::string, Module*>> modules_;
  bool training_ = true;
};

/// A module that takes one tensor to one tensor.
class UnaryModule : public Module {
 public:
  virtual Tensor forward(const Tensor& x) const = 0;               ///< What the module computes; called by operator() too.
  Tensor operator()(const Tensor& x) const { return forward(x); }  ///< forward(x)
};

}  // namespace glade::nn
