// Gradients side by side: their places, and what products take them from there.
#include <glade/glade.h>

#include <glade/autograd/gradient_matrix.h>
#include <glade/autograd/running_pass.h>
#include <glade/core/row_blocks.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using autograd::GradientColumns;
using autograd::GradientMatrix;
using autograd::Node;

class GradientPlaces : public DeviceTest {};
GLADE_DEVICE_TESTS(GradientPlaces);

void expect_columns(const Tensor& matrix, const Tensors& expected) {
  ASSERT_TRUE(matrix.defined());
  std::int64_t first = 0;
  for (const Tensor& x : expected) {
    const std::int64_t n = x.size(-1);
    EXPECT_TRUE(all_close(slice(matrix, 1, first, first + n), reshape(x, {x.numel() / n, n})));
    first += n;
  }
  EXPECT_EQ(matrix.size(1), first);
}

TEST_P(GradientPlaces, LieSideBySide) {
  const Tensors values{random_tensor({2, 3, 4}, device()), random_tensor({2, 3, 8}, device()),
                       random_tensor({2, 3, 1}, device())};
  const Tensor heads = reshape(values[1], {2, 3, 2, 4});
  const GradientColumns columns{6, {4, 8, 1}, values[0].options()};
  GradientMatrix matrix(columns);
  const Tensor first = matrix.take_place(0, values[0]), of_heads = matrix.take_place(1, heads);
  EXPECT_EQ(first.storage(), of_heads.storage());
  EXPECT_EQ(of_heads.shape(), heads.shape());
  EXPECT_FALSE(matrix.take_place(0, values[0]).defined());  // is taken
  copy_data(first, values[0]);
  copy_data(of_heads, heads);
  expect_columns(matrix.gather({first, reshape(of_heads, {2, 3, 8}), values[2]}), values);  // little is copied
  // What is left in a place is kept as long as anybody has it.
  const Tensor left = matrix.take_place(2, values[2]);
  copy_data(left, values[2]);
  EXPECT_FALSE(matrix.gather({first, reshape(of_heads, {2, 3, 8}), random_tensor({2, 3, 1}, device())}).defined());
  EXPECT_TRUE(all_close(left, values[2]));
  // Much is not copied, and nothing is left out.
  EXPECT_FALSE(GradientMatrix(columns).gather(values).defined());
  EXPECT_FALSE(matrix.gather({first, reshape(of_heads, {2, 3, 8}), {}}).defined());
}

TEST_P(GradientPlaces, AreForWholeRows) {
  GradientMatrix matrix({6, {4, 8}, {DType::float32, device()}});
  for (const Shape& shape : {Shape{3, 8}, Shape{6, 8}, Shape{6, 2}, Shape{2, 2, 3, 2}})  // the last has parts of rows
    EXPECT_FALSE(matrix.take_place(0, empty(shape, {DType::float32, device()})).defined()) << shape.str();
  EXPECT_FALSE(matrix.take_place(0, empty({6, 4}, {DType::float64, device()})).defined());
  EXPECT_TRUE(matrix.take_place(0, empty({6, 2, 2}, {DType::float32, device()})).defined());
}

/// Outputs [2, 3, n] of one node, which leaves the matrix of their gradients in `matrix`.
Tensors maps(const Tensor& x, const std::vector<std::int64_t>& columns, Tensor& matrix) {
  Tensors outputs;
  for (const std::int64_t n : columns) outputs.push_back(random_tensor({2, 3, n}, x.device()));
  autograd::record("maps", outputs, {x},
                   [&matrix, shape = x.shape(), options = x.options()](const Node& node, const Tensors& gradients) {
                     matrix = autograd::gather_gradients(node, gradients);
                     return Tensors{zeros(shape, options)};
                   },
                   {.columns = std::make_shared<const GradientColumns>(GradientColumns{6, columns, outputs[0].options()})});
  return outputs;
}

/// A scalar whose gradient with respect to x is x, in memory that it asks for and leaves in `memory`; `other` gets none.
Tensor asking(const Tensor& x, Tensor& memory, const Tensor& other = {}) {
  Tensor y = zeros({}, x.options());
  autograd::record("asking", y, {&x, &other}, [x = x.detach(), &memory](const Node& node, const Tensor&) {
    memory = autograd::empty_gradient_with_gaps(node, 0, x);
    copy_data(memory, x);
    return Tensors{memory, {}};
  });
  return y;
}

TEST_P(GradientPlaces, AreFoundThroughReshapes) {
  const Tensor x = random_leaf({6, 5}, device());
  Tensor matrix, memory[3];
  const Tensors y = maps(x, {4, 8, 6}, matrix);
  const Tensor sum = asking(y[0], memory[0]) + asking(reshape(y[1], {2, 3, 2, 4}), memory[1]) +
                     asking(squeeze(unsqueeze(flatten(y[2], 0, 1), 0), 0), memory[2]);
  for (const bool again : {true, false}) {
    sum.backward({}, again);
    expect_columns(matrix, y);
    for (const Tensor& place : memory) EXPECT_EQ(place.storage(), matrix.storage());
  }
}

TEST_P(GradientPlaces, AreGivenOnce) {
  const Tensor x = random_leaf({6, 5}, device());
  Tensor matrix, memory[3];
  const Tensors y = maps(x, {4, 64}, matrix);
  Tensor sum = asking(y[0], memory[0]);
  sum = sum + asking(y[0], memory[1]);
  sum = sum + asking(y[1], memory[2]);
  sum.backward();
  EXPECT_FALSE(memory[1].is_contiguous());  // of the younger node, which comes first
  EXPECT_TRUE(memory[0].is_contiguous());
  EXPECT_FALSE(matrix.defined());  // the sum of both lies elsewhere, and a place that was given is not written over
  EXPECT_TRUE(all_close(memory[1], y[0]));
}

TEST_P(GradientPlaces, AreNotGivenElsewhere) {
  const Tensor x = random_leaf({6, 5}, device()), w = random_leaf({}, device());
  Tensor matrix, memory[6];
  const Tensors y = maps(x, {4, 8}, matrix);
  // Behind nodes that are no reshapes, for inputs that are leaves, or made by others.
  Tensor sum = asking(transpose(y[0], 0, 1), memory[0]) + asking(slice(y[1], 1, 0, 2), memory[1]) + asking(exp(y[1]), memory[2]) +
               asking(x, memory[3]) + asking(x * w, memory[4]);
  sum.backward();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(memory[i].is_contiguous()) << i;
  EXPECT_FALSE(matrix.defined());
  // In a pass that does not reach the maker, and in none.
  const Tensor z = asking(maps(x, {4, 8}, matrix)[0], memory[5], w * 2);
  autograd::grad({z + w}, {w});
  EXPECT_TRUE(memory[5].is_contiguous());
  EXPECT_TRUE(autograd::empty_gradient_with_gaps(*autograd::gradient_edge(z).node, 0, y[0]).is_contiguous());
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
