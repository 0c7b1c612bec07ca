#include <glade/autograd/engine.h>

#include <thread>

#include <glade/autograd/function.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

Tensor leaf(double value) { return full({}, value, {DType::float64}).set_requires_grad(); }

TEST(Backward, GathersOverAllPaths) {
  const Tensor x = leaf(3), y = leaf(5);
  const Tensor z = x * y + x * x + x;
  z.backward();
  EXPECT_EQ(x.grad().item<double>(), 5 + 6 + 1);
  EXPECT_EQ(y.grad().item<double>(), 3);
}

TEST(Backward, AddsToWhatIsThere) {
  const Tensor x = leaf(2);
  for (int i = 0; i < 3; ++i) (x * x).backward();
  EXPECT_EQ(x.grad().item<double>(), 12);
  x.set_grad({});
  EXPECT_FALSE(x.grad().defined());
}

TEST(Backward, ADiamondIsVisitedOnce) {
  const Tensor x = leaf(2);
  Tensor y = x;
  for (int i = 0; i < 60; ++i) y = y + y;  // 2^60 paths
  y.backward();
  EXPECT_EQ(x.grad().item<double>(), std::ldexp(1.0, 60));
}

TEST(Backward, AMillionNodesInARow) {
  const Tensor x = leaf(1);
  Tensor y = x;
  for (int i = 0; i < 1000000; ++i) y = y + 1e-6;
  y.backward();
  EXPECT_EQ(x.grad().item<double>(), 1);
}

TEST(Backward, TwiceNeedsRetainGraph) {
  const Tensor x = leaf(3);
  const Tensor y = exp(x);
  y.backward({}, true);
  y.backward();
  EXPECT_DOUBLE_EQ(x.grad().item<double>(), 2 * std::exp(3.0));
  EXPECT_TRUE(throws_with<AutogradError>([&] { y.backward(); }, "retain_graph"));
}

TEST(Backward, LeavesDoNotShareAGradient) {
  const Tensor a = random_leaf({3}), b = random_leaf({3});
  sum(a + b).backward();
  NoGradGuard no_grad;
  multiply_(a.grad(), 5);
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{1, 1, 1}));
}

TEST(Backward, GivenGradientIsNotKept) {
  const Tensor x = random_leaf({3}), weights = Tensor::from_vector<double>({1, 2, 3});
  x.backward(weights);
  NoGradGuard no_grad;
  zero_(weights);
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{1, 2, 3}));
}

TEST(Backward, Errors) {
  const Tensor x = random_leaf({3});
  EXPECT_TRUE(throws_with<AutogradError>([&] { (x * 2).backward(); }, "give a gradient"));
  EXPECT_TRUE(throws_with<AutogradError>([&] { zeros({}).backward(); }, "does not require a gradient"));
  EXPECT_TRUE(throws_with<AutogradError>([&] { (x * 2).backward(zeros({2}, {DType::float64})); }, "[2]"));
  EXPECT_TRUE(throws_with<AutogradError>([&] { (x * 2).set_requires_grad(); }, "detach it first"));
  EXPECT_TRUE(throws_with<DTypeError>([] { zeros({2}, {DType::int64}).set_requires_grad(); }, "int64"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { x.set_grad(zeros({2}, {DType::float64})); }, "set_grad"));
}

TEST(Backward, AChangedSavedTensorIsAnError) {
  const Tensor x = random_leaf({3}), w = random_tensor({3});
  const Tensor y = sum(x * w);
  add_(slice(w, 0, 0, 1), ones({1}, {DType::float64}));  // through a view
  EXPECT_TRUE(throws_with<AutogradError>([&] { y.backward(); }, "changed in place"));
  const Tensor h = exp(x);
  const Tensor z = sum(h);
  {
    NoGradGuard no_grad;
    multiply_(h, 2);
  }
  EXPECT_TRUE(throws_with<AutogradError>([&] { z.backward(); }, "exp"));
}

TEST(Recording, FollowsModeAndDetach) {
  const Tensor x = leaf(2);
  {
    NoGradGuard no_grad;
    EXPECT_FALSE((x * x).requires_grad());
    std::thread([&x] { EXPECT_TRUE((x * x).requires_grad()); }).join();  // the mode is a thread's own
  }
  const Tensor y = x * x;
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(y.is_leaf());
  EXPECT_FALSE(y.detach().requires_grad());
  EXPECT_EQ(y.detach().raw_data(), y.raw_data());
  (y.detach() * x).backward();
  EXPECT_EQ(x.grad().item<double>(), 4);
}

TEST(Grad, OfInnerTensorsAndLeaves) {
  const Tensor x = leaf(2);
  const Tensor h = x * x;
  const Tensor y = h * h * x;
  const Tensors gradients = autograd::grad({y}, {h, x});
  EXPECT_EQ(gradients[0].item<double>(), 2 * 4 * 2);
  EXPECT_EQ(gradients[1].item<double>(), 5 * 16);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Grad, UnusedInputs) {
  const Tensor x = leaf(2), unused = leaf(1);
  EXPECT_TRUE(throws_with<AutogradError>([&] { autograd::grad({x * x}, {x, unused}); }, "input 1"));
  EXPECT_FALSE(autograd::grad({x * x}, {unused}, {}, false, false, true)[0].defined());
}

TEST(Grad, OutputsMayBeLeaves) {
  const Tensor x = leaf(2), y = leaf(3);
  EXPECT_EQ(autograd::grad({x, y, x * y}, {y})[0].item<double>(), 3);
}

TEST(Grad, LeavesAloneWhatDoesNotLeadToTheInputs) {
  const Tensor x = leaf(2), w = leaf(3);
  const Tensor expensive = exp(w);
  const Tensor y = x * x * expensive;
  autograd::grad({y}, {x});
  expensive.backward();  // was not freed
  EXPECT_DOUBLE_EQ(w.grad().item<double>(), std::exp(3.0));
}

TEST(CreateGraph, HigherDerivatives) {
  const Tensor x = leaf(0.7);
  Tensor y = sin(x);
  for (int order = 1; order <= 4; ++order) {
    y = autograd::grad({y}, {x}, {}, false, true)[0];
    EXPECT_NEAR(y.item<double>(), std::sin(0.7 + order * M_PI / 2), 1e-14) << order;
  }
  const Tensor z = power(x, 3.0);
  z.backward({}, false, true);
  const Tensor first = x.grad();
  x.set_grad({});
  first.backward();
  EXPECT_NEAR(x.grad().item<double>(), 6 * 0.7, 1e-14);
}

TEST(Hooks, SeeAndReplaceGradients) {
  const Tensor x = leaf(2);
  const Tensor h = x * 3;
  double seen = 0;
  h.register_hook([&seen](const Tensor& gradient) {
    seen = gradient.item<double>();
    return gradient * 10;
  });
  const auto key = x.register_hook([](const Tensor& gradient) { return gradient + 1; });
  (h * h + h).backward();
  EXPECT_EQ(seen, 13);  // the whole gradient, once
  EXPECT_EQ(x.grad().item<double>(), 13 * 10 * 3 + 1);
  x.set_grad({});
  x.remove_hook(key);
  (x * 2).backward();
  EXPECT_EQ(x.grad().item<double>(), 2);
  EXPECT_TRUE(throws_with<AutogradError>([] { zeros({}).register_hook([](const Tensor& g) { return g; }); }, "register_hook"));
  for (const Tensor& other : {zeros({3}, x.options()), zeros({}, {DType::float32})}) {
    const Tensor y = exp(x);
    y.register_hook([other](const Tensor&) { return other; });
    EXPECT_TRUE(throws_with<AutogradError>([&] { y.backward(); }, "a hook replaced a gradient, float64 [] on cpu, by"));
  }
}

TEST(Hooks, OnALeafOutliveATape) {
  const Tensor x = leaf(2);
  int calls = 0;
  x.register_hook([&calls](const Tensor&) {
    ++calls;
    return Tensor{};
  });
  for (int i = 0; i < 3; ++i) (x * x).backward();
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(x.grad().item<double>(), 12);
}

/// x times w, whose backward writes `name` into `log`.
Tensor logged_product(const Tensor& x, const Tensor& w, std::vector<std::string>& log, const std::string& name) {
  const Tensor y = x * w;
  y.register_hook([&log, name](const Tensor&) {
    log.push_back(name);
    return Tensor{};
  });
  return y;
}

std::function<void(const Tensor&)> logging(std::vector<std::string>& log, const std::string& name) {
  return [&log, name](const Tensor& x) { log.push_back(name + " " + std::to_string(std::lround(x.grad().item<double>()))); };
}

TEST(PostAccumulateHooks, ComeAsSoonAsAGradientIsFinal) {
  const Tensor x = leaf(2), a = leaf(3), b = leaf(5), c = leaf(7);
  std::vector<std::string> log;
  a.register_post_accumulate_grad_hook(logging(log, "a"));
  b.register_post_accumulate_grad_hook(logging(log, "b"));
  const auto key = c.register_post_accumulate_grad_hook(logging(log, "c"));
  const auto other = c.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    EXPECT_TRUE(leaf.is_same(c));
    EXPECT_FALSE(x.grad().defined());  // leaves without such hooks come last
  });
  const auto forward = [&] {
    return logged_product(logged_product(logged_product(logged_product(x, a, log, "xa"), b, log, "xab"), c, log, "xabc"), b, log,
                          "xabcb");
  };
  forward().backward();
  EXPECT_EQ(log, (std::vector<std::string>{"xabcb", "xabc", "c 150", "xab", "b 420", "xa", "a 350"}));
  EXPECT_EQ(x.grad().item<double>(), 3 * 5 * 7 * 5);
  log.clear();
  c.remove_hook(key);
  c.remove_hook(other);
  const Tensor y = forward();
  y.backward({}, true);  // adds to what is there
  EXPECT_EQ(log, (std::vector<std::string>{"xabcb", "xabc", "xab", "b 840", "xa", "a 700"}));
  y.backward();
  EXPECT_EQ(log.back(), "a 1050");
  EXPECT_EQ(c.grad().item<double>(), 3 * 150);
}

TEST(PostAccumulateHooks, CountUsesThatGetNoGradient) {
  const Tensor x = leaf(2), w = leaf(3);
  std::vector<std::string> log;
  w.register_post_accumulate_grad_hook(logging(log, "w"));
  const auto blocked = [](const Tensor& in) {
    Tensor out = zeros({}, in.options());
    autograd::record("blocked", out, {&in}, [](const autograd::Node&, const Tensor&) { return Tensors(1); });
    return out;
  };
  const Tensor h = logged_product(x, x, log, "xx");
  const Tensor used = logged_product(h, w, log, "xxw");
  const Tensor unused = blocked(exp(w * w) * w);
  (used + unused).backward();
  EXPECT_EQ(log, (std::vector<std::string>{"xxw", "w 4", "xx"}));
  // Where nothing comes at all, there is nothing to see.
  blocked(w * 2).backward();
  EXPECT_EQ(log.size(), 3U);
}

TEST(PostAccumulateHooks, SeeRootsAndReplacedGradients) {
  const Tensor w = leaf(3);
  std::vector<std::string> log;
  w.register_post_accumulate_grad_hook(logging(log, "w"));
  w.backward();
  w.register_hook([](const Tensor& gradient) { return gradient * 10; });
  autograd::backward({w, w * 2}, {});
  EXPECT_EQ(log, (std::vector<std::string>{"w 1", "w 31"}));
  autograd::grad({w * 2, w}, {w});  // changes no grad()
  EXPECT_EQ(log.size(), 2U);
  w.set_grad({});
  (w * w * w).backward({}, false, true);
  EXPECT_EQ(log.back(), "w 270");
  const Tensor first = w.grad();
  w.set_grad({});
  first.backward();
  EXPECT_EQ(log.back(), "w 1800");
}

TEST(PostAccumulateHooks, MayThrowAndRemoveThemselves) {
  const Tensor x = leaf(2), a = leaf(3), b = leaf(5);
  const auto key = a.register_post_accumulate_grad_hook([](const Tensor&) { throw std::runtime_error("from the hook"); });
  int calls = 0;
  std::uint64_t own = 0;
  own = b.register_post_accumulate_grad_hook([&](const Tensor& leaf) {
    ++calls;
    leaf.remove_hook(own);
  });
  EXPECT_TRUE(throws_with<std::runtime_error>([&] { (x * a * b).backward(); }, "from the hook"));
  EXPECT_EQ(b.grad().item<double>(), 6);
  EXPECT_EQ(a.grad().item<double>(), 10);
  EXPECT_FALSE(x.grad().defined());
  a.remove_hook(key);
  (x * a * b).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(b.grad().item<double>(), 12);
  EXPECT_EQ(x.grad().item<double>(), 15);
}

TEST(PostAccumulateHooks, MayStepAndRunPasses) {
  const Tensor x = leaf(2), w = leaf(3);
  w.register_post_accumulate_grad_hook([](const Tensor& leaf) {
    EXPECT_FALSE(GradMode::enabled());
    add_(leaf, leaf.grad() * -0.5);
    leaf.set_grad({});
    const Tensor inner = full({}, 4, {DType::float64}).set_requires_grad();
    GradMode::set_enabled(true);
    const Tensor y = inner * inner;
    GradMode::set_enabled(false);
    y.backward();
    EXPECT_EQ(inner.grad().item<double>(), 8);
  });
  (x * w).backward();
  EXPECT_EQ(w.item<double>(), 2);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(x.grad().item<double>(), 3);
}

TEST(PostAccumulateHooks, AreForLeaves) {
  const Tensor x = leaf(2);
  const auto hook = [](const Tensor&) {};
  EXPECT_TRUE(throws_with<AutogradError>([&] { (x * 2).register_post_accumulate_grad_hook(hook); }, "expected a leaf"));
  EXPECT_TRUE(throws_with<AutogradError>([&] { zeros({}).register_post_accumulate_grad_hook(hook); }, "expected a leaf"));
}

struct Cube : autograd::Function<Cube> {
  static Tensors forward(autograd::Context& ctx, const Tensors& inputs) {
    ctx.save({inputs[0]});
    ctx.values["scale"] = 2.0;
    return {inputs[0] * inputs[0] * inputs[0] * 2.0, inputs[0]};
  }
  static Tensors backward(autograd::Context& ctx, const Tensors& gradients) {
    const Tensor x = ctx.saved()[0];
    const double scale = std::any_cast<double>(ctx.values["scale"]);
    Tensor gradient = gradients[0].defined() ? gradients[0] * (3 * scale) * x * x : zeros_like(x);
    if (gradients[1].defined()) gradient = gradient + gradients[1];
    return {gradient};
  }
};

TEST(CustomFunction, HasItsOwnDerivative) {
  const Tensor x = random_leaf({4});
  EXPECT_TRUE(autograd::gradcheck([](const Tensors& in) { return Cube::apply(in); }, {x}));
  EXPECT_TRUE(autograd::gradgradcheck([](const Tensors& in) { return Tensors{Cube::apply(in)[0]}; }, {x}));
}

struct Wrong : autograd::Function<Wrong> {
  static Tensors forward(autograd::Context&, const Tensors& inputs) { return {inputs[0] * 2.0}; }
  static Tensors backward(autograd::Context&, const Tensors& gradients) { return {gradients[0] * 2.001}; }
};
struct WrongShape : autograd::Function<WrongShape> {
  static Tensors forward(autograd::Context&, const Tensors& inputs) { return {inputs[0] * 2.0}; }
  static Tensors backward(autograd::Context&, const Tensors&) { return {zeros({1}, {DType::float64})}; }
};

TEST(Gradcheck, FindsWrongDerivatives) {
  const Tensor x = random_leaf({4});
  EXPECT_TRUE(throws_with<AutogradError>([&] { autograd::gradcheck([](const Tensors& in) { return Wrong::apply(in); }, {x}); },
                                         "element 0"));
  EXPECT_TRUE(throws_with<AutogradError>([&] { sum(WrongShape::apply({x})[0]).backward(); }, "its gradient float64 [1] on cpu"));
  // Not at a leaf: kernels before it would read beyond the gradient.
  EXPECT_TRUE(throws_with<AutogradError>([&] { sum(WrongShape::apply({exp(x)})[0]).backward(); },
                                         "Function::backward: input 0 is float64 [4] on cpu, its gradient float64 [1] on cpu"));
}

TEST(Gradcheck, LeavesTheInputsAsTheyWere) {
  const Tensor x = random_leaf({4});
  const auto values = x.to_vector<double>();
  int calls = 0;
  const auto ended = [&calls](const Tensors& in) {
    if (++calls == 4) throw std::runtime_error("ended");
    return Tensors{in[0] * 2.0};
  };
  EXPECT_THROW(autograd::gradcheck(ended, {x}), std::runtime_error);
  EXPECT_EQ(x.to_vector<double>(), values);
  EXPECT_THROW(autograd::gradcheck([](const Tensors& in) { return Wrong::apply(in); }, {x}), AutogradError);
  EXPECT_EQ(x.to_vector<double>(), values);
}

TEST(Tape, FreesMemoryAsItGoes) {
  const Tensor x = random_leaf({8});
  std::weak_ptr<Storage> saved;
  Tensor y;
  {
    const Tensor h = exp(x);
    saved = h.storage();
    y = sum(h * h);
  }
  EXPECT_FALSE(saved.expired());
  y.backward();
  EXPECT_TRUE(saved.expired());
}

TEST(Tape, AnOutputThatIsSavedIsNotALeak) {
  std::weak_ptr<Storage> storage;
  {
    const Tensor x = random_leaf({8});
    const Tensor y = exp(x);
    storage = y.storage();
  }
  EXPECT_TRUE(storage.expired());
}

TEST(Tape, ThreadsCanShareLeaves) {
  const Tensor w = random_leaf({64});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&w] {
      for (int step = 0; step < 50; ++step) sum(w * 1.0).backward();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(w.grad().to_vector<double>()[0], 200);
}

}  // namespace
}  // namespace glade
