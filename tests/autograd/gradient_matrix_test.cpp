// Gradients side by side: their places, and what products take them from there.
#include <glade/glade.h>

#include <glade/autograd/gradient_matrix.h>
#include <glade/core/row_blocks.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using autograd::empty_gradient;
using autograd::GradientMatrix;

class GradientPlaces : public DeviceTest {};
GLADE_DEVICE_TESTS(GradientPlaces);

TEST_P(GradientPlaces, LieSideBySide) {
  const Tensors tensors{random_tensor({2, 3, 4}, device()), random_tensor({2, 3, 8}, device()),
                        random_tensor({2, 3, 1}, device())};
  GradientMatrix matrix(tensors);
  const Tensor heads = tensors[1].as_strided({2, 3, 2, 4}, {24, 8, 4, 1}, 0);
  const Tensors values{random_tensor({2, 3, 4}, device()), random_tensor({2, 3, 8}, device()),
                       random_tensor({2, 3, 1}, device())};
  const auto expect_all = [&](const Tensor& all, const Tensors& expected) {
    ASSERT_TRUE(all.defined());
    std::int64_t first = 0;
    for (const Tensor& x : expected) {
      EXPECT_TRUE(all_close(slice(all, 1, first, first + x.size(-1)), reshape(x, {6, x.size(-1)})));
      first += x.size(-1);
    }
    EXPECT_EQ(all.shape(), (Shape{6, first}));
  };
  for (int run = 0; run < 2; ++run) {  // as in a second backward pass
    const Tensor first = empty_gradient(tensors[0]), of_heads = empty_gradient(heads), again = empty_gradient(tensors[0]);
    EXPECT_EQ(first.storage(), of_heads.storage());
    EXPECT_NE(first.storage(), again.storage());  // its place is taken
    EXPECT_EQ(of_heads.shape(), heads.shape());
    copy_data(first, values[0]);
    copy_data(of_heads, reshape(values[1], heads.shape()));
    expect_all(matrix.gather({first, reshape(of_heads, {2, 3, 8}), values[2]}), values);
  }
  // What is left in a place is kept as long as anybody has it.
  const Tensor left = empty_gradient(tensors[2]), other = empty_gradient(tensors[0]), large = empty_gradient(tensors[1]);
  copy_data(left, values[2]);
  EXPECT_FALSE(matrix.gather({other, large, random_tensor({2, 3, 1}, device())}).defined());
  EXPECT_TRUE(all_close(left, values[2]));
  // Little is copied, nothing is left out, and nobody has to ask.
  EXPECT_FALSE(matrix.gather(values).defined());
  empty_gradient(tensors[0]);
  EXPECT_FALSE(matrix.gather(values).defined());
  const Tensor place = empty_gradient(tensors[0]);
  EXPECT_FALSE(matrix.gather({place, empty_gradient(tensors[1]), {}}).defined());
}

TEST_P(GradientPlaces, AreForWholeTensors) {
  const Tensor x = random_tensor({4, 8}, device()), y = random_tensor({4, 8}, device());
  Tensor place;
  {
    GradientMatrix matrix({x, y});
    for (const Tensor& other : {slice(x, 0, 0, 2), transpose(x, 0, 1), random_tensor({4, 8}, device()), reshape(x, {2, 16})}) {
      place = empty_gradient(other);
      EXPECT_TRUE(place.is_contiguous());
      EXPECT_EQ(place.shape(), other.shape());
    }
    EXPECT_FALSE(empty_gradient(x).is_contiguous());
  }
  EXPECT_TRUE(empty_gradient(y).is_contiguous());
}

TEST_P(GradientPlaces, BlocksOfRows) {
  const Tensor whole = random_tensor({6, 3}, device());
  const Tensors blocks = split_rows(whole, {1, 3, 2});
  EXPECT_TRUE(all_close(blocks[1], slice(whole, 0, 1, 4)));
  EXPECT_NE(blocks[0].storage(), blocks[1].storage());
  EXPECT_TRUE(all_close(join_rows(blocks), whole));
  EXPECT_EQ(join_rows(blocks).raw_data(), whole.raw_data());
  EXPECT_FALSE(join_rows({blocks[0], blocks[2]}).defined());
  EXPECT_FALSE(join_rows({blocks[0], to_data(blocks[1], DType::float32)}).defined());
}

/// What a GLA layer does, with maps [..., 5 results] of x by `maps`.
using Maps = Tensors (*)(const Tensor& x, const Tensors& weights);
Tensor layer(const Tensor& x, const Tensors& w, bool reverse, Maps maps) {
  const Tensors y = maps(x, {w[0], w[1], w[2], w[3], w[4]});
  const auto heads = [](const Tensor& t) { return reshape(t, {t.size(0), t.size(1), 2, t.size(2) / 2}); };
  RecurrentOptions options;
  options.gk = heads(normalized_logsigmoid(linears(y[3], {w[5]})[0], 16));
  options.reverse = reverse;
  const Tensor o = recurrent(heads(silu(y[0])), heads(y[1]), heads(y[2]), options).first;
  return gated_norm_linear(o, heads(y[4]), w[6], 1e-5, w[7]);
}

TEST_P(GradientPlaces, JoinedProductsEqualSeparateOnes) {
  const auto separate = [](const Tensor& x, const Tensors& weights) {
    Tensors out;
    for (const Tensor& weight : weights) out.push_back(linears(x, {weight})[0]);
    return out;
  };
  const auto together = [](const Tensor& x, const Tensors& weights) { return linears(x, weights); };
  for (const DType dtype : {DType::bfloat16, DType::float16})
    for (const bool reverse : {false, true}) {
      Tensors inputs{random_tensor({3, 130, 64}, device(), dtype).set_requires_grad()};
      const Tensor x = inputs[0];
      for (const Shape& shape : {Shape{128, 64}, Shape{128, 64}, Shape{256, 64}, Shape{16, 64}, Shape{256, 64}, Shape{128, 16},
                                 Shape{128}, Shape{64, 256}})
        inputs.push_back(random_tensor(shape, device(), DType::float32, 0,
                                       shape.ndim() == 1 ? 1 : 1 / std::sqrt(static_cast<double>(shape[1])))
                             .set_requires_grad());
      const Tensors weights(inputs.begin() + 1, inputs.end());
      const Tensor grad = random_tensor({3, 130, 64}, device(), dtype);
      const auto gradients = [&](Maps maps) {
        const Tensor y = layer(x, weights, reverse, maps);
        return std::pair(y.to_vector<double>(), autograd::grad({y}, inputs, {grad}));
      };
      const auto [expected_y, expected] = gradients(separate);
      for (int run = 0; run < 2; ++run) {
        const auto [y, got] = gradients(together);
        EXPECT_EQ(y, expected_y);
        for (std::size_t i = 0; i < inputs.size(); ++i)
          EXPECT_LT(relative_error(got[i], expected[i]), dtype == DType::bfloat16 ? 0x1p-7 : 0x1p-10)
              << dtype_name(dtype) << " " << reverse << " " << i;
      }
      // Gradients of leaves are theirs alone.
      layer(x, weights, reverse, together).backward(grad);
      layer(x, weights, reverse, together).backward(grad);
      for (std::size_t i = 1; i < inputs.size(); ++i) {
        EXPECT_TRUE(inputs[i].grad().is_contiguous());
        EXPECT_LT(relative_error(inputs[i].grad(), expected[i] * 2), dtype == DType::bfloat16 ? 0x1p-7 : 0x1p-10) << i;
      }
    }
}

}  // namespace
}  // namespace glade
