// Undefined tensors where operations and the tape expect one.
#include <functional>

#include <glade/glade.h>

#include "support/testing.h"

namespace glade {
namespace {

using testing_support::throws_with;

TEST(Undefined, TensorsAreErrors) {
  const Tensor none, x = ones({2, 2});
  const std::function<void()> uses[] = {
      [&] { none.requires_grad(); },
      [&] { Tensor(none).set_requires_grad(); },
      [&] { none.is_leaf(); },
      [&] { none.grad(); },
      [&] { none.detach(); },
      [&] { sum(none); },
      [&] { softmax(none); },
      [&] { argmax(none); },
      [&] { matmul(none, x); },
      [&] { matmul(x, none); },
      [&] { linear(x, none); },
      [&] { reshape(none, {1}); },
      [&] { transpose(none, 0, 1); },
      [&] { contiguous(none); },
      [&] { to(none, DType::float64); },
      [&] { rms_norm(none); },
      [&] { swiglu(x, none); },
      [&] { embedding(zeros({1}, {DType::int64, kCPU}), none); },
      [&] { gather(x, 0, none); },
      [&] { cross_entropy(x, none); },
      [&] { mse_loss(none, x); },
      [&] { dropout(none, 0.5); },
  };
  for (std::size_t i = 0; i < std::size(uses); ++i) EXPECT_TRUE(throws_with<ValueError>(uses[i], "undefined")) << i;
}

}  // namespace
}  // namespace glade
