// Gradients of leaves that a backward pass on a GPU computes on a side stream.
#include <algorithm>
#include <map>

#include <glade/autograd/running_pass.h>
#include <glade/glade.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using autograd::Node;

using Log = std::vector<std::string>;

class SideStream : public DeviceTest {
 protected:
  Tensor leaf(double value) const { return full({64}, value, {DType::float64, device()}).set_requires_grad(); }

  /// x times w. The gradient of w is deferred, in a kernel that takes long enough to be seen where somebody does not wait for it.
  Tensor product(const Tensor& x, const Tensor& w, Log& log, const std::string& name) {
    Tensor y;
    {
      NoGradGuard no_grad;
      y = x * w;
    }
    autograd::record("product", y, {&x, &w},
                     [x = x.detach(), w = w.detach(), &log, name, this](const Node&, const Tensor& gradient) {
                       log.push_back(name);
                       const Tensor out = empty_like(w);
                       computed_[name] = out.raw_data();
                       autograd::defer(out, [&log, name, x, gradient](const Tensor& to) {
                         const Tensor busy = empty({to.is_cuda() ? 1 << 22 : 1}, to.options());
                         for (int i = 0; i < 50; ++i) fill_data(busy, i);
                         copy_data(to, x * gradient);
                         log.push_back("deferred " + name);
                       });
                       log.push_back(name + " end");
                       return Tensors{gradient * w, out};
                     });
    return y;
  }

  /// x again, by a node whose kernels leave the GPU idle.
  Tensor idle(const Tensor& x, Log& log) const {
    Tensor y = x.detach();
    autograd::record("idle", y, {&x},
                     [&log](const Node&, const Tensor& gradient) {
                       log.push_back("idle");
                       return Tensors{gradient};
                     },
                     {.leaves_gpu_idle = true});
    return y;
  }

  std::map<std::string, void*> computed_;  // where gradients were last computed, by name

  static std::vector<double> repeated(double value) { return std::vector<double>(64, value); }
};
GLADE_DEVICE_TESTS(SideStream);

TEST_P(SideStream, StartsBeforeNodesThatLeaveTheGpuIdle) {
  const Tensor x = leaf(2), a = leaf(3), b = leaf(5), c = leaf(7);
  Log log;
  const Tensor y = sum(product(idle(product(product(x, a, log, "a"), b, log, "b"), log), c, log, "c"));
  for (int run = 1; run <= 2; ++run) {
    log.clear();
    y.backward({}, true);
    const Log at_once{"c", "deferred c", "c end", "idle", "b", "deferred b", "b end", "a", "deferred a", "a end"},
        later{"c", "c end", "deferred c", "idle", "b", "b end", "a", "a end", "deferred b", "deferred a"};
    EXPECT_EQ(log, device().is_cpu() ? at_once : later);
    EXPECT_EQ(a.grad().to_vector<double>(), repeated(run * 2 * 5 * 7));
    EXPECT_EQ(b.grad().to_vector<double>(), repeated(run * 2 * 3 * 7));
    EXPECT_EQ(c.grad().to_vector<double>(), repeated(run * 2 * 3 * 5));
  }
}

TEST_P(SideStream, DropsWhatNobodyAsksFor) {
  const Tensor x = leaf(2), a = leaf(3);
  Log log;
  const Tensor h = x * 2;
  autograd::grad({sum(product(h, a, log, "a"))}, {h});
  EXPECT_EQ(log.size(), device().is_cpu() ? 3U : 2U);
}

TEST_P(SideStream, StartsWhenMuchHasComeTogether) {
  const Tensor x = leaf(1);
  Tensors weights;
  Log log;
  Tensor y = x;
  for (int i = 0; i < 20; ++i) {
    weights.push_back(leaf(i % 2 == 0 ? 2 : 0.5));
    y = product(y, weights.back(), log, std::to_string(i));
  }
  sum(y).backward();
  if (device().is_cuda()) {
    const auto begins = [&](const std::string& name) { return std::ranges::find(log, name) - log.begin(); };
    EXPECT_LT(begins("4"), begins("deferred 19"));
    EXPECT_LT(begins("deferred 4"), begins("3"));
  }
  for (std::size_t i = 0; i < 20; ++i) EXPECT_EQ(weights[i].grad().to_vector<double>(), repeated(i % 2 == 0 ? 0.5 : 2)) << i;
}

TEST_P(SideStream, HooksSeeFinalGradientsOnTheCurrentStream) {
  const Tensor x = leaf(2), a = leaf(3), b = leaf(5), c = leaf(7);
  const Stream communication = device().is_cuda() ? Stream::create() : Stream(), own = current_stream();
  Log log;
  Tensors copies;
  const auto hook = [&](const std::string& name) {
    return [&, name](const Tensor& leaf) {
      log.push_back("hook " + name);
      copies.push_back(empty_like(leaf));
      if (device().is_cpu()) return copy_data(copies.back(), leaf.grad());
      EXPECT_NE(current_stream().handle, own.handle);  // the side stream; the pass does not wait for it
      communication.wait(current_stream());
      const StreamGuard guard(communication);
      copy_data(copies.back(), leaf.grad());
    };
  };
  a.register_post_accumulate_grad_hook(hook("a"));
  c.register_post_accumulate_grad_hook(hook("c"));
  const Tensor y = sum(product(idle(product(product(x, a, log, "a"), b, log, "b"), log), c, log, "c"));
  for (int run = 1; run <= 2; ++run) {  // the second time the side stream also adds
    log.clear();
    copies.clear();
    y.backward({}, true);
    const Log at_once{"c",          "deferred c", "c end", "hook c",     "idle",  "b",
                      "deferred b", "b end",      "a",     "deferred a", "a end", "hook a"},
        later{"c", "c end", "deferred c", "hook c", "idle", "b", "b end", "a", "a end", "deferred b", "deferred a", "hook a"};
    EXPECT_EQ(log, device().is_cpu() ? at_once : later);
    if (device().is_cuda()) communication.synchronize();
    ASSERT_EQ(copies.size(), 2U);
    EXPECT_EQ(c.grad().raw_data() == computed_["c"], run == 1);  // taken without a copy
    EXPECT_EQ(copies[0].to_vector<double>(), repeated(run * 2 * 3 * 5));
    EXPECT_EQ(copies[1].to_vector<double>(), repeated(run * 2 * 5 * 7));
    EXPECT_EQ(b.grad().to_vector<double>(), repeated(run * 2 * 3 * 7));
    EXPECT_EQ(x.grad().to_vector<double>(), repeated(run * 3 * 5 * 7));
  }
}

TEST_P(SideStream, HooksOnLeavesThatAreUsedAgain) {
  const Tensor x = leaf(2), w = leaf(3), direct = leaf(5);
  Log log;
  Tensor seen_w, seen_direct;
  w.register_post_accumulate_grad_hook([&](const Tensor& leaf) { seen_w = leaf.grad() * 1; });
  direct.register_post_accumulate_grad_hook([&](const Tensor& leaf) { seen_direct = leaf.grad() * 1; });
  // w by two deferred gradients and one that is not; `direct` by one that is not.
  sum(product(product(idle(x * w * direct, log), w, log, "1"), w, log, "2")).backward();
  EXPECT_EQ(w.grad().to_vector<double>(), repeated(3 * 2 * 3 * 3 * 5));
  EXPECT_EQ(seen_w.to_vector<double>(), repeated(3 * 2 * 3 * 3 * 5));
  EXPECT_EQ(direct.grad().to_vector<double>(), repeated(2 * 3 * 3 * 3));
  EXPECT_EQ(seen_direct.to_vector<double>(), repeated(2 * 3 * 3 * 3));
}

TEST_P(SideStream, IsJoinedAfterAHookThatThrows) {
  const Tensor x = leaf(2), a = leaf(3), c = leaf(7);
  Log log;
  c.register_post_accumulate_grad_hook([](const Tensor&) { throw std::runtime_error("from the hook"); });
  EXPECT_THROW(sum(product(idle(product(x, a, log, "a"), log), c, log, "c")).backward(), std::runtime_error);
  EXPECT_EQ(c.grad().to_vector<double>(), repeated(2 * 3));
  EXPECT_FALSE(a.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST_P(SideStream, CanBeCaptured) {
  if (device().is_cpu()) GTEST_SKIP() << "no graphs on the CPU";
  const Tensor x = leaf(2), a = leaf(3), c = leaf(7);
  const Tensor seen = zeros({64}, x.options());
  Log log;
  c.register_post_accumulate_grad_hook([&](const Tensor& leaf) { copy_data(seen, leaf.grad()); });
  const auto step = [&] {
    for (const Tensor& t : {x, a, c}) t.set_grad({});
    sum(product(idle(product(x, a, log, "a"), log), c, log, "c")).backward();
  };
  step();
  cuda::Graph graph;
  graph.capture(step);
  for (const double value : {3.0, 11.0}) {
    fill_data(a, value);
    fill_data(seen, 0);
    graph.replay();
    EXPECT_EQ(seen.to_vector<double>(), repeated(2 * value));
    EXPECT_EQ(c.grad().to_vector<double>(), repeated(2 * value));
    EXPECT_EQ(a.grad().to_vector<double>(), repeated(2 * 7));
  }
}

}  // namespace
}  // namespace glade
