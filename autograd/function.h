#pragma once
// Operations with a derivative of one's own:
//
//     struct Cube : autograd::Function<Cube> {
//       static Tensors forward(autograd::Context& ctx, const Tensors& inputs) {
//         ctx.save({inputs[0]});
//         return {inputs[0] * inputs[0] * inputs[0]};
//       }
//       static Tensors backward(autograd::Context& ctx, const Tensors& gradients) {
//         Tensor x = ctx.saved()[0];
//         return {gradients[0] * 3.0 * x * x};
//       }
//     };
//     Tensor y = Cube::apply({x})[0];
#include <any>
#include <map>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// What forward hands to backward.
class Context {
 public:
  /// Tensors that backward needs, inputs or intermediate values.
  void save(const Tensors& tensors) { saved_.assign(tensors.begin(), tensors.end()); }
  /// What save() was given. AutogradError where one of them was changed in place since.
  Tensors saved() const {
    Tensors tensors;
    for (const SavedTensor& x : saved_) tensors.push_back(x.get());
    return tensors;
  }
  /// Anything else, by name.
  std::map<std::string, std::any> values;

 private:
  std::vector<SavedTensor> saved_;
};

/// Checks gradients that come from code outside of glade: kernels rely on their shapes.
class GradientCheck {
 public:
  explicit GradientCheck(const Tensors& inputs);  ///< Notes shapes, dtypes and devices of the inputs that require a gradient.
  /// AutogradError, naming `who` gave them, unless each is undefined, not wanted, or of its input's shape and dtype on its
  /// device.
  void operator()(const char* who, const Node& node, const Tensors& gradients) const;

 private:
  struct Input {
    Shape shape;
    TensorOptions options;
  };
  std::vector<Input> inputs_;
};

/// The base of operations with a derivative of one's own: see the top of this file.
template <class Derived>
struct Function {
  /// Runs Derived::forward without recording and records Derived::backward in its place. At backward, AutogradError where that
  /// gives gradients that do not suit the inputs.
  static Tensors apply(const Tensors& inputs) {
    Context context;
    Tensors outputs;
    {
      NoGradGuard no_grad;
      outputs = Derived::forward(context, inputs);
    }
    for (Tensor& y : outputs)
      for (const Tensor& x : inputs)
        if (y.is_same(x)) y = x.detach();
    record("Function", outputs, inputs,
           [context = std::move(context), check = GradientCheck(inputs)](const Node& node, const Tensors& gradients) mutable {
             Tensors results = Derived::backward(context, gradients);
             check("Function::backward", node, results);
             return results;
           });
    return outputs;
  }
};

}  // namespace glade::autograd
