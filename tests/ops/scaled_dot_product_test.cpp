// Softmax attention against the plain composition, on every device. tests/python/test_softmax_attention.py has masks and errors.
#include <glade/autograd/engine.h>
#include <glade/ops/attention/scaled_dot_product.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <cmath>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class ScaledDotProduct : public DeviceTest {};

Tensor composed(const Tensor& q, const Tensor& k, const Tensor& v) {
  const std::int64_t group = q.size(1) / k.size(1);
  const Tensor keys = repeat_interleave(k, group, 1), values = repeat_interleave(v, group, 1);
  return matmul(softmax(matmul(q, transpose(keys, -2, -1)) / std::sqrt(static_cast<double>(q.size(-1)))), values);
}

TEST_P(ScaledDotProduct, IsSoftmaxOfScoresTimesValues) {
  for (const std::int64_t keys : {7, 1200}) {  // kept for backward, and computed again in blocks of rows
    Tensors x, y;
    for (const Shape& shape : {Shape{2, 4, keys, 8}, Shape{2, 2, keys, 8}, Shape{2, 2, keys, 3}}) {
      x.push_back(random_tensor(shape, device(), DType::float64).detach().set_requires_grad());
      y.push_back(clone(x.back().detach()).set_requires_grad());
    }
    const Tensor out = scaled_dot_product_attention(x[0], x[1], x[2]), expected = composed(y[0], y[1], y[2]);
    EXPECT_TRUE(all_close(out, expected, 1e-10, 1e-12));
    sum(square(out)).backward();
    sum(square(expected)).backward();
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(all_close(x[i].grad(), y[i].grad(), 1e-9, 1e-12)) << keys << " " << i;
  }
}

TEST_P(ScaledDotProduct, CausalRowsAreThoseOfTheirPrefix) {
  const Tensor q = random_tensor({1, 2, 9, 4}, device(), DType::float64),
               k = random_tensor({1, 1, 9, 4}, device(), DType::float64);
  ScaledDotProductOptions causal;
  causal.is_causal = true;
  const Tensor out = scaled_dot_product_attention(q, k, k, causal);
  for (std::int64_t row = 0; row < 9; ++row) {
    const Tensor prefix = slice(k, 2, 0, row + 1);
    EXPECT_TRUE(all_close(slice(out, 2, row, row + 1), composed(slice(q, 2, row, row + 1), prefix, prefix), 1e-10, 1e-12)) << row;
  }
}

TEST(RetainGrad, KeepsGradientsOfResults) {
  const Tensor x = ones({2}).set_requires_grad(), y = x * 3;
  autograd::retain_grad(y);
  autograd::retain_grad(y);
  sum(square(y)).backward();
  EXPECT_EQ(y.grad().to_vector<float>(), (std::vector<float>{6, 6}));
  EXPECT_TRUE(throws_with<AutogradError>([] { autograd::retain_grad(ones({1})); }, "retain_grad"));
}

GLADE_DEVICE_TESTS(ScaledDotProduct);

}  // namespace
}  // namespace glade
