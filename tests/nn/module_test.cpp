// Modules, their registries, and state dictionaries.
#include <glade/nn/containers.h>
#include <glade/nn/dropout.h>
#include <glade/nn/linear.h>
#include <glade/nn/module.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/reduce/reduce.h>

#include <tuple>

#include "support/testing.h"

namespace glade::nn {
namespace {

using namespace testing_support;

struct Inner : Module {
  Tensor scale = register_parameter("scale", ones({3}));
  Tensor count = register_buffer("count", zeros({}, {DType::int64, kCPU}));
};

/// `tied` is the first layer's weight again.
struct Outer : Module {
  Linear first{3, 3};
  Inner inner;
  Linear tied{first.weight};
  Tensor shift = register_parameter("shift", zeros({3}));
  Outer() {
    register_module("first", first);
    register_module("inner", inner);
    register_module("tied", tied);
  }
};

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& [name, x] : tensors) result.push_back(name);
  return result;
}

StateDict copy_of(const StateDict& state) {
  StateDict result;
  for (const auto& [name, x] : state) result.emplace(name, clone(x));
  return result;
}

TEST(Module, NamesParametersInOrderAndSharedOnesOnce) {
  Outer model;
  EXPECT_EQ(names(model.named_parameters()), (std::vector<std::string>{"shift", "first.weight", "first.bias", "inner.scale"}));
  EXPECT_EQ(names(model.named_state()),
            (std::vector<std::string>{"shift", "first.weight", "first.bias", "inner.scale", "inner.count", "tied.weight"}));
  EXPECT_EQ(model.parameters().size(), 4u);
  for (const Tensor& x : model.parameters()) EXPECT_TRUE(x.requires_grad());
  EXPECT_FALSE(model.inner.count.requires_grad());
}

TEST(Module, AssignedMembersAreParameters) {
  struct Tied : Module {
    Linear first{3, 3, false}, second{3, 3, false};
    Tied() {
      register_module("first", first);
      register_module("second", second);
    }
  } model;
  EXPECT_EQ(model.parameters().size(), 2u);
  model.second.weight = model.first.weight;
  EXPECT_EQ(names(model.named_parameters()), (std::vector<std::string>{"first.weight"}));
  EXPECT_EQ(names(model.named_state()), (std::vector<std::string>{"first.weight", "second.weight"}));
  model.second.bias = ones({3}).set_requires_grad();
  EXPECT_EQ(names(model.named_parameters()), (std::vector<std::string>{"first.weight", "second.bias"}));
  model.to(DType::float64);
  EXPECT_EQ(model.second.weight.dtype(), DType::float64);
  EXPECT_TRUE(all_close(model.second(ones({1, 3}, {DType::float64, kCPU})) - 1, model.first(ones({1, 3}, {DType::float64, kCPU})),
                        1e-12, 0));
}

TEST(Module, AppliesAFunctionFromTheInside) {
  Outer model;
  std::vector<Module*> seen;
  model.apply([&](Module& module) { seen.push_back(&module); });
  EXPECT_EQ(seen, (std::vector<Module*>{&model.first, &model.inner, &model.tied, &model}));
  EXPECT_EQ(names(model.named_buffers()), (std::vector<std::string>{"inner.count"}));
}

TEST(Module, ZeroGradCanKeepTheMemory) {
  Linear layer(2, 2);
  sum(layer(ones({1, 2}))).backward();
  const Tensor gradient = layer.weight.grad();
  layer.zero_grad(false);
  EXPECT_TRUE(layer.weight.grad().is_same(gradient));
  EXPECT_EQ(gradient.to_vector<float>(), (std::vector<float>{0, 0, 0, 0}));
  layer.zero_grad();
  EXPECT_FALSE(layer.weight.grad().defined());
}

TEST(Module, RefusesBadNames) {
  struct Named : Module {
    explicit Named(const std::string& name) {
      register_parameter("taken", zeros({1}));
      register_buffer(name, zeros({1}));
    }
  };
  EXPECT_TRUE(throws_with<ValueError>([] { Named model("taken"); }, "'taken' is taken"));
  for (const char* name : {"", "a.b", "a/b"})
    EXPECT_TRUE(throws_with<ValueError>([&] { Named model(name); }, "empty or contains"));
}

TEST(Module, RefusesToBeAPartOfItself) {
  struct Node : Module {
    void add(Module& module) { register_module("part", module); }
  };
  Node outer, inner;
  outer.add(inner);
  EXPECT_TRUE(throws_with<ValueError>([&] { inner.add(outer); }, "'part' would be a part of itself"));
  EXPECT_TRUE(throws_with<ValueError>([&] { inner.add(inner); }, "'part' would be a part of itself"));
}

TEST(Module, StateDictHoldsTheValues) {
  Outer model;
  const StateDict state = model.state_dict();
  EXPECT_EQ(state.size(), 6u);
  EXPECT_FALSE(state.at("shift").requires_grad());
  EXPECT_EQ(state.at("tied.weight").raw_data(), model.first.weight.raw_data());
}

TEST(Module, LoadsWhatAnotherSaved) {
  Outer source, target;
  *source.inner.count.data<std::int64_t>() = 7;
  const Tensor weight = target.first.weight;
  target.load_state_dict(source.state_dict());
  EXPECT_TRUE(all_close(target.first.weight, source.first.weight, 0, 0));
  EXPECT_EQ(target.inner.count.item<std::int64_t>(), 7);
  EXPECT_NE(target.first.weight.raw_data(), source.first.weight.raw_data());
  EXPECT_TRUE(target.first.weight.is_same(weight));
}

TEST(Module, LoadConvertsFloatingTypes) {
  Outer source, target;
  source.to(DType::float64);
  target.load_state_dict(source.state_dict());
  EXPECT_EQ(target.first.weight.dtype(), DType::float32);
  EXPECT_TRUE(all_close(target.first.weight, source.first.weight, 0, 0));
}

TEST(Module, AssignTakesTheMemoryItIsGiven) {
  Outer source, model;
  StateDict state = copy_of(source.state_dict());
  state.erase("tied.weight");
  state.at("shift") = to_data(state.at("shift"), DType::float64);
  sum(model.first(ones({2, 3}))).backward();
  model.assign_state_dict(state);
  EXPECT_EQ(model.first.weight.raw_data(), state.at("first.weight").raw_data());
  EXPECT_EQ(model.tied.weight.raw_data(), state.at("first.weight").raw_data());
  EXPECT_EQ(model.shift.dtype(), DType::float32);
  EXPECT_FALSE(model.first.weight.grad().defined());
  EXPECT_TRUE(all_close(model.first(ones({2, 3})), source.first(ones({2, 3})), 0, 0));
  state.erase("shift");
  EXPECT_TRUE(throws_with<ValueError>([&] { model.assign_state_dict(state); }, "missing shift"));
}

TEST(Module, SharedParameterNeedsOneOfItsNames) {
  Outer source, target;
  StateDict state = source.state_dict();
  state.erase("first.weight");
  target.load_state_dict(state);
  EXPECT_TRUE(all_close(target.first.weight, source.first.weight, 0, 0));
  state.erase("tied.weight");
  EXPECT_TRUE(throws_with<ValueError>([&] { target.load_state_dict(state); }, "missing first.weight, tied.weight"));
}

TEST(Module, FailedLoadListsEverythingAndChangesNothing) {
  Outer source, target;
  const StateDict before = copy_of(target.state_dict());
  StateDict state = source.state_dict();
  state.erase("shift");
  state["first.bias"] = zeros({4});
  state["inner.count"] = zeros({});
  state["stray"] = zeros({1});
  const auto load = [&] { target.load_state_dict(state); };
  EXPECT_TRUE(throws_with<ValueError>(load, "missing shift;"));
  EXPECT_TRUE(throws_with<ValueError>(load, "unexpected stray;"));
  EXPECT_TRUE(throws_with<ValueError>(load, "first.bias is [4], expected [3]"));
  EXPECT_TRUE(throws_with<ValueError>(load, "inner.count is float32, expected int64"));
  for (const auto& [name, x] : target.state_dict()) EXPECT_TRUE(all_close(x, before.at(name), 0, 0)) << name;
}

TEST(Module, TrainAndEvalReachEverySubmodule) {
  struct Model : Module {
    Dropout dropout{0.5};
    Inner inner;
    Model() {
      register_module("dropout", dropout);
      register_module("inner", inner);
    }
  } model;
  EXPECT_TRUE(model.training());
  model.eval();
  EXPECT_FALSE(model.dropout.training() || model.inner.training());
  model.train();
  EXPECT_TRUE(model.dropout.training() && model.inner.training());
}

TEST(Module, ConvertsInPlaceAndKeepsSharing) {
  Outer model;
  const Tensor weight = model.first.weight;
  sum(model.first(ones({2, 3}))).backward();
  model.to(DType::float64);
  EXPECT_TRUE(model.first.weight.is_same(weight));
  EXPECT_EQ(weight.dtype(), DType::float64);
  EXPECT_EQ(weight.grad().dtype(), DType::float64);
  EXPECT_TRUE(all_close(weight.grad(), full({3, 3}, 2.0)));
  EXPECT_EQ(model.tied.weight.raw_data(), weight.raw_data());
  EXPECT_EQ(model.inner.count.dtype(), DType::int64);
  model.zero_grad();
  sum(model.first(ones({2, 3}, {DType::float64, kCPU}))).backward();
  EXPECT_TRUE(all_close(weight.grad(), full({3, 3}, 2.0)));
  EXPECT_TRUE(throws_with<DTypeError>([&] { model.to(DType::int32); }, "int32"));
}

class ModuleDevice : public DeviceTest {};

TEST_P(ModuleDevice, MovesParametersBuffersAndGradients) {
  Outer model;
  sum(model.first(ones({2, 3}))).backward();
  const StateDict before = copy_of(model.state_dict());
  model.to(device());
  for (const auto& [name, x] : model.named_state()) {
    EXPECT_EQ(x.device(), device()) << name;
    EXPECT_TRUE(all_close(x, before.at(name), 0, 0)) << name;
  }
  EXPECT_EQ(model.first.weight.grad().device(), device());
  EXPECT_EQ(model.first(ones({2, 3}, {DType::float32, device()})).device(), device());
}
GLADE_DEVICE_TESTS(ModuleDevice);

TEST(Module, ZeroGradAndFreezing) {
  Outer model;
  sum(model.first(ones({2, 3}))).backward();
  model.zero_grad();
  for (const Tensor& x : model.parameters()) EXPECT_FALSE(x.grad().defined());
  model.set_requires_grad(false);
  EXPECT_FALSE(model.first(ones({2, 3})).requires_grad());
}

TEST(Sequential, AppliesItsPartsInOrder) {
  Sequential model;
  Linear& first = model.add<Linear>(2, 4);
  model.add(tanh);
  Linear& second = model.add<Linear>(4, 1, false);
  EXPECT_EQ(model.size(), 3u);
  EXPECT_EQ(names(model.named_parameters()), (std::vector<std::string>{"0.weight", "0.bias", "2.weight"}));
  const Tensor x = random_tensor({5, 2}, kCPU, DType::float32);
  EXPECT_TRUE(all_close(model(x), second(tanh(first(x))), 0, 0));
}

TEST(ModuleList, NamesItsModulesByPosition) {
  ModuleList<Linear> list;
  for (int i = 1; i <= 3; ++i) list.emplace_back(i, 2, false);
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(names(list.named_parameters()), (std::vector<std::string>{"0.weight", "1.weight", "2.weight"}));
  EXPECT_EQ(list[1].weight.shape(), (Shape{2, 2}));
}

}  // namespace
}  // namespace glade::nn
