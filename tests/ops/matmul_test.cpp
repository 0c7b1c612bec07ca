// matmul and linear against plain loops in float64.
#include <glade/autograd/weight_copy.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class Matmul : public DeviceTest {};
GLADE_DEVICE_TESTS(Matmul);

/// a b by three loops, for operands of at least two dimensions.
Tensor loops(const Tensor& a, const Tensor& b) {
  const std::int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  auto batch = [](const Tensor& x) { return Shape(std::span(x.shape().begin(), static_cast<std::size_t>(x.ndim() - 2))); };
  const Shape batches = broadcast_shapes(batch(a), batch(b), "test");
  auto expanded = [&](const Tensor& x, std::int64_t rows, std::int64_t columns) {
    Shape shape = batches;
    shape.push_back(rows);
    shape.push_back(columns);
    return expand(x, shape).to_vector<double>();
  };
  const auto x = expanded(a, m, k), y = expanded(b, k, n);
  std::vector<double> out(static_cast<std::size_t>(batches.numel() * m * n));
  for (std::int64_t i = 0; i < batches.numel(); ++i)
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t c = 0; c < n; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < k; ++j)
          sum += x[static_cast<std::size_t>((i * m + r) * k + j)] * y[static_cast<std::size_t>((i * k + j) * n + c)];
        out[static_cast<std::size_t>((i * m + r) * n + c)] = sum;
      }
  Shape shape = batches;
  shape.push_back(m);
  shape.push_back(n);
  return Tensor::from_vector(out, shape);
}

void expect_product(const Tensor& a, const Tensor& b) {
  const Tensor out = matmul(a, b);
  EXPECT_EQ(out.device(), a.device());
  EXPECT_TRUE(out.is_contiguous());
  EXPECT_TRUE(all_close(out, loops(a, b), 1e-12, 1e-11))
      << a.shape().str() << " " << a.strides().str() << " times " << b.shape().str() << " " << b.strides().str();
}

TEST_P(Matmul, Matrices) {
  for (const auto& [m, k, n] : std::vector<std::array<std::int64_t, 3>>{
           {1, 1, 1}, {2, 3, 4}, {7, 5, 3}, {1, 9, 5}, {6, 8, 1}, {5, 1, 6}, {1, 300, 1}, {33, 65, 17}, {130, 70, 258}})
    expect_product(random_tensor({m, k}, device()), random_tensor({k, n}, device()));
}

// Every way in which the two last dimensions can lie in memory, for both operands.
TEST_P(Matmul, Layouts) {
  const auto layouts = [&](std::int64_t rows, std::int64_t columns) {
    const Tensor wide = random_tensor({rows, columns + 3}, device()), tall = random_tensor({columns, rows + 2}, device());
    return Tensors{random_tensor({rows, columns}, device()),
                   transpose(random_tensor({columns, rows}, device()), 0, 1),
                   slice(wide, 1, 1, columns + 1),
                   transpose(slice(tall, 1, 2, rows + 2), 0, 1),
                   slice(random_tensor({rows, columns * 2}, device()), 1, 0, columns * 2, 2),
                   slice(random_tensor({rows * 3, columns}, device()), 0, 0, rows * 3, 3),
                   expand(random_tensor({1, columns}, device()), {rows, columns}),
                   expand(random_tensor({rows, 1}, device()), {rows, columns})};
  };
  for (const auto& [m, k, n] :
       std::vector<std::array<std::int64_t, 3>>{{4, 5, 6}, {1, 5, 6}, {4, 1, 6}, {4, 5, 1}, {1, 7, 1}, {1, 1, 3}})
    for (const Tensor& a : layouts(m, k))
      for (const Tensor& b : layouts(k, n)) expect_product(a, b);
}

TEST_P(Matmul, OverlappingRows) {
  const Tensor line = random_tensor({12}, device());
  expect_product(line.as_strided({4, 5}, {2, 1}, 0), random_tensor({5, 3}, device()));
  expect_product(random_tensor({3, 4}, device()), line.as_strided({4, 5}, {1, 1}, 0));
}

TEST_P(Matmul, Batches) {
  const auto random = [&](const Shape& shape) { return random_tensor(shape, device()); };
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{3, 4, 5}, {3, 5, 6}},          {{3, 4, 5}, {5, 6}},          {{4, 5}, {3, 5, 6}},
      {{2, 3, 4, 5}, {3, 5, 6}},       {{2, 1, 4, 5}, {1, 3, 5, 6}}, {{2, 3, 4, 5}, {5, 6}},
      {{2, 1, 4, 5}, {3, 5, 6}},       {{3, 1, 5}, {5, 6}},          {{3, 4, 5}, {5, 1}},
      {{3, 1, 4, 5}, {2, 5, 6}},       {{1, 4, 5}, {5, 6}},          {{1, 1, 5}, {7, 5, 1}},
      {{2, 1, 3, 2, 4}, {5, 1, 4, 3}}, {{40, 2, 3}, {40, 3, 2}},     {{9, 1, 3}, {9, 3, 1}}};
  for (const auto& [a, b] : shapes) expect_product(random(a), random(b));
}

TEST_P(Matmul, BatchedViews) {
  const auto random = [&](const Shape& shape) { return random_tensor(shape, device()); };
  const Tensor heads = permute(random({2, 7, 3, 4}), {0, 2, 1, 3});  // [2, 3, 7, 4], as attention has them
  expect_product(heads, transpose(heads, -1, -2));
  expect_product(transpose(heads, -1, -2), heads);
  expect_product(heads, random({4, 5}));
  expect_product(transpose(random({3, 4, 5}), -1, -2), random({4, 6}));
  expect_product(permute(random({4, 3, 5}), {1, 0, 2}), random({5, 6}));
  expect_product(permute(random({5, 3, 4}), {1, 2, 0}), random({5, 6}));  // columns contiguous over batch and rows
  expect_product(permute(random({5, 3, 4}), {1, 2, 0}), random({3, 5, 6}));
  expect_product(slice(random({4, 6, 5}), 1, 1, 4), random({5, 6}));
  expect_product(slice(random({6, 1, 5}), 0, 0, 6, 2), random({5, 6}));
  expect_product(expand(random({1, 4, 5}), {3, 4, 5}), random({5, 6}));
  expect_product(expand(random({1, 1, 5}), {3, 1, 5}), random({5, 6}));
  expect_product(expand(random({1, 4, 5}), {3, 4, 5}), expand(random({1, 5, 6}), {3, 5, 6}));
  expect_product(random({3, 4, 5}), expand(transpose(random({1, 6, 5}), 1, 2), {3, 5, 6}));
}

TEST_P(Matmul, Vectors) {
  const Tensor v = random_tensor({5}, device()), w = random_tensor({5}, device()), a = random_tensor({4, 5}, device());
  const Tensor batch = random_tensor({3, 4, 5}, device());
  EXPECT_TRUE(all_close(matmul(v, w), reshape(loops(reshape(v, {1, 5}), reshape(w, {5, 1})), {})));
  EXPECT_TRUE(all_close(matmul(a, v), reshape(loops(a, reshape(v, {5, 1})), {4})));
  EXPECT_TRUE(all_close(matmul(v, transpose(a, 0, 1)), reshape(loops(reshape(v, {1, 5}), transpose(a, 0, 1)), {4})));
  EXPECT_TRUE(all_close(matmul(batch, v), reshape(loops(batch, reshape(v, {5, 1})), {3, 4})));
  EXPECT_TRUE(all_close(matmul(v, transpose(batch, 1, 2)), reshape(loops(reshape(v, {1, 5}), transpose(batch, 1, 2)), {3, 4})));
  const Tensor strided = slice(random_tensor({10}, device()), 0, 0, 10, 2);
  EXPECT_TRUE(all_close(matmul(a, strided), reshape(loops(a, reshape(strided, {5, 1})), {4})));
}

// One row or one column, for which a GPU has a kernel of its own, at sizes on both sides of its choices.
TEST_P(Matmul, RowsAndColumns) {
  struct Case {
    DType dtype;
    double rounding;
  };
  const auto values = [](const Tensor& x) { return to(x, DType::float64); };
  for (const Case& c : {Case{DType::float32, 0x1p-24}, Case{DType::bfloat16, 0x1p-8}, Case{DType::float16, 0x1p-11}})
    for (const std::int64_t k : {4, 8, 24, 1000, 1024, 2056, 4096, 8200})
      for (const std::int64_t rows : {1, 7, 130}) {
        const Tensor wide = random_tensor({rows, k + 8}, device(), c.dtype), x = random_tensor({1, k}, device(), c.dtype);
        const Tensor bias = random_tensor({rows}, device(), c.dtype), addend = random_tensor({1, rows}, device(), c.dtype);
        for (const Tensor& weight : {slice(wide, 1, 8, k + 8), slice(wide, 1, 1, k + 1), contiguous(slice(wide, 1, 0, k))}) {
          const Tensor product = loops(values(x), transpose(values(weight), 0, 1)).to(device());
          // Sums of numbers of about 1: what their order changes grows with their root. On a GPU a matrix that is not aligned
          // goes to cuBLASLt, which may round a long product before it adds the bias.
          const bool twice = device().is_cuda() && weight.offset() == 1;
          const double largest = amax(abs(product)).item<double>(),
                       absolute = 0x1p-23 * static_cast<double>(k) + (twice ? c.rounding * largest : 0);
          const auto expect = [&](const char* what, const Tensor& out, const Tensor& expected) {
            EXPECT_EQ(out.dtype(), c.dtype);
            EXPECT_TRUE(all_close(values(out), reshape(expected, out.shape()), 1.01 * c.rounding, absolute))
                << what << ", " << dtype_name(c.dtype) << " " << rows << " x " << k << " from " << weight.offset();
          };
          expect("row times matrix", matmul(x, transpose(weight, 0, 1)), product);
          expect("matrix times vector", matmul(weight, reshape(x, {k})), product);
          expect("matrix times column", matmul(weight, transpose(x, 0, 1)), product);
          expect("with bias", linear(x, weight, bias), product + values(bias));
          expect("with addend", linears(x, {weight}, {bias}, {addend})[0], product + values(bias) + values(addend));
        }
      }
}

TEST_P(Matmul, Empty) {
  const auto e = [&](const Shape& shape) { return random_tensor(shape, device()); };
  EXPECT_EQ(matmul(e({0, 3}), e({3, 4})).shape(), (Shape{0, 4}));
  EXPECT_EQ(matmul(e({2, 3}), e({3, 0})).shape(), (Shape{2, 0}));
  EXPECT_EQ(matmul(e({0, 2, 3}), e({3, 4})).shape(), (Shape{0, 2, 4}));
  EXPECT_EQ(matmul(e({0, 1, 2, 3}), e({5, 3, 4})).shape(), (Shape{0, 5, 2, 4}));
  EXPECT_TRUE(all_close(matmul(e({2, 0}), e({0, 4})), zeros({2, 4}, {DType::float64, kCPU})));
  EXPECT_TRUE(all_close(matmul(e({3, 2, 0}), e({0, 4})), zeros({3, 2, 4}, {DType::float64, kCPU})));
  EXPECT_EQ(matmul(e({0}), e({0})).item<double>(), 0);
}

// Inner sizes of zero and batches of zero leave gradients of zero.
TEST_P(Matmul, EmptyGradients) {
  for (const auto& [a_shape, b_shape] :
       std::vector<std::pair<Shape, Shape>>{{{2, 0}, {0, 3}}, {{0, 2, 3}, {3, 4}}, {{2, 3}, {0, 3, 4}}, {{0, 0}, {0, 2}}}) {
    const Tensor a = random_leaf(a_shape, device()), b = random_leaf(b_shape, device());
    sum(matmul(a, b)).backward();
    EXPECT_TRUE(all_close(a.grad(), zeros(a_shape, {DType::float64, kCPU})));
    EXPECT_TRUE(all_close(b.grad(), zeros(b_shape, {DType::float64, kCPU})));
  }
  const Tensor x = random_leaf({0, 3}, device()), weight = random_leaf({2, 3}, device()), bias = random_leaf({2}, device());
  sum(linear(x, weight, bias)).backward();
  EXPECT_TRUE(all_close(weight.grad(), zeros({2, 3}, {DType::float64, kCPU})));
  EXPECT_TRUE(all_close(bias.grad(), zeros({2}, {DType::float64, kCPU})));
}

// Both sides compute from the same rounded operands, so what differs is the sum's rounding, sqrt(k) eps of its type, and
// one rounding of the result (2^-9 and 2^-12 of a value for the 16-bit types).
TEST_P(Matmul, DTypes) {
  struct Case {
    DType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] : {Case{DType::float32, 2e-6}, Case{DType::bfloat16, 4e-3}, Case{DType::float16, 5e-4}}) {
    for (const auto& [a_shape, b_shape] : std::vector<std::pair<Shape, Shape>>{{{70, 129}, {129, 65}},
                                                                               {{1, 200}, {200, 31}},
                                                                               {{33, 40}, {40, 1}},
                                                                               {{5, 17, 24}, {5, 24, 9}},
                                                                               {{3, 16, 24}, {24, 8}},
                                                                               {{9, 7}, {6, 7, 5}}}) {
      const Tensor a = random_tensor(a_shape, device(), dtype), b = random_tensor(b_shape, device(), dtype);
      const Tensor out = matmul(a, b);
      EXPECT_EQ(out.dtype(), dtype);
      EXPECT_LT(relative_error(out, loops(a, b)), tolerance) << dtype_name(dtype) << a_shape.str() << b_shape.str();
      const Tensor at = transpose(to_data(contiguous(transpose(a, -1, -2)), dtype), -1, -2),
                   bt = transpose(contiguous(transpose(b, -1, -2)), -1, -2);
      EXPECT_LT(relative_error(matmul(at, bt), loops(a, b)), tolerance)
          << "transposed " << dtype_name(dtype) << a_shape.str() << b_shape.str();
    }
  }
}

// Larger than one block of the conversion to float32, with odd edges.
TEST_P(Matmul, LargeSixteenBit) {
  const Tensor a = random_tensor({300, 4200}, device(), DType::bfloat16),
               b = random_tensor({4200, 530}, device(), DType::bfloat16);
  const Tensor expected = matmul(to_data(a, DType::float64), to_data(b, DType::float64));
  EXPECT_LT(relative_error(matmul(a, b), expected), 4e-3);
  const Tensor bt = transpose(contiguous(transpose(b, 0, 1)), 0, 1), at = transpose(contiguous(transpose(a, 0, 1)), 0, 1);
  EXPECT_LT(relative_error(matmul(at, bt), expected), 4e-3);
  const Tensor many = random_tensor({600, 40, 50}, device(), DType::bfloat16),
               others = random_tensor({600, 50, 30}, device(), DType::bfloat16);
  EXPECT_LT(relative_error(matmul(many, others), matmul(to_data(many, DType::float64), to_data(others, DType::float64))), 4e-3);
}

// float32 keeps its full precision on CUDA too: with TF32 the error would be about 1e-3.
TEST_P(Matmul, LargeFloat32) {
  const Tensor a = random_tensor({257, 1030}, device(), DType::float32), b = random_tensor({1030, 300}, device(), DType::float32);
  EXPECT_LT(relative_error(matmul(a, b), matmul(to_data(a, DType::float64), to_data(b, DType::float64))), 2e-6);
}

// An offset of one element leaves 16-bit operands aligned to 2 bytes only.
TEST_P(Matmul, UnalignedOperands) {
  const Tensor a = random_tensor({33, 65}, device(), DType::bfloat16), b = random_tensor({65, 17}, device(), DType::bfloat16);
  const Tensor a_part = slice(slice(a, 1, 1, 65), 0, 1, 33), b_part = slice(slice(b, 0, 1, 65), 1, 1, 16);
  EXPECT_LT(relative_error(matmul(a_part, b_part), loops(a_part, b_part)), 4e-3);
}

TEST_P(Matmul, Integers) {
  for (const DType dtype : {DType::int64, DType::int32, DType::uint8})
    for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{
             {{3, 5}, {5, 4}}, {{2, 3, 5}, {5, 4}}, {{3, 1, 2, 5}, {2, 5, 1}}, {{40, 70}, {70, 33}}, {{2, 0}, {0, 3}}}) {
      const auto make = [&](const Shape& shape) {
        return to_data(abs(random_tensor(shape, device(), DType::float64, 0, 0.8)), dtype);
      };
      const Tensor x = make(a), y = make(b), out = matmul(x, y);
      EXPECT_EQ(out.dtype(), dtype);
      EXPECT_TRUE(all_close(out, loops(x, y), 0, 0)) << a.str() << b.str();
      EXPECT_TRUE(all_close(matmul(transpose(y, -2, -1), transpose(x, -2, -1)), transpose(out, -2, -1), 0, 0));
    }
  const Tensor large = full({1, 1}, std::int64_t{1} << 40, {DType::int64, device()});
  EXPECT_EQ(matmul(large, full({1, 1}, 3, large.options())).item<std::int64_t>(), std::int64_t{3} << 40);
  EXPECT_EQ(matmul(large, full({1, 1}, 0.5, {DType::float64, device()})).dtype(), DType::float64);
}

TEST_P(Matmul, Promotes) {
  const Tensor a = random_tensor({3, 4}, device(), DType::bfloat16), b = random_tensor({4, 5}, device(), DType::float32);
  EXPECT_EQ(matmul(a, b).dtype(), DType::float32);
  EXPECT_LT(relative_error(matmul(a, b), loops(a, b)), 1e-6);
  Tensor leaf = a.detach().set_requires_grad();
  sum(matmul(leaf, b)).backward();
  EXPECT_EQ(leaf.grad().dtype(), DType::bfloat16);
}

TEST_P(Matmul, Infinities) {
  const double inf = INFINITY;
  const Tensor a = Tensor::from_vector<double>({inf, 1, 2, 3}, {2, 2}, device()),
               b = Tensor::from_vector<double>({1, 0, 0, 1}, {2, 2}, device());
  EXPECT_TRUE(all_close(matmul(a, b), Tensor::from_vector<double>({inf, NAN, 2, 3}, {2, 2})));
}

TEST_P(Matmul, Deterministic) {
  const Tensor a = random_tensor({65, 700}, device(), DType::float32), b = random_tensor({700, 33}, device(), DType::float32);
  const auto first = matmul(a, b).to_vector<float>();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(matmul(a, b).to_vector<float>(), first);
}

TEST_P(Matmul, Gradients) {
  const auto f = [](const Tensors& x) { return Tensors{matmul(x[0], x[1])}; };
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{3, 4}, {4, 2}}, {{2, 3, 4}, {2, 4, 2}}, {{2, 3, 4}, {4, 2}}, {{3, 4}, {2, 4, 2}}, {{2, 1, 3, 2}, {3, 2, 2}},
      {{4}, {4}},       {{3, 4}, {4}},          {{4}, {4, 3}},       {{2, 3, 4}, {4}},    {{4}, {2, 4, 3}}};
  for (const auto& [a, b] : shapes) {
    EXPECT_TRUE(autograd::gradcheck(f, {random_leaf(a, device()), random_leaf(b, device())})) << a.str() << b.str();
    EXPECT_TRUE(autograd::gradgradcheck(f, {random_leaf(a, device()), random_leaf(b, device())})) << a.str() << b.str();
  }
  const auto views = [](const Tensors& x) { return Tensors{matmul(transpose(x[0], -1, -2), expand(x[1], {2, 3, 2}))}; };
  EXPECT_TRUE(autograd::gradcheck(views, {random_leaf({2, 3, 4}, device()), random_leaf({3, 2}, device())}));
}

TEST_P(Matmul, OneGradient) {
  const Tensor a = random_leaf({3, 4}, device()), b = random_tensor({4, 2}, device());
  sum(matmul(a, b)).backward();
  EXPECT_TRUE(all_close(a.grad(), loops(ones({3, 2}, {DType::float64, kCPU}), transpose(b, 0, 1))));
  EXPECT_FALSE(b.grad().defined());
}

TEST_P(Matmul, Errors) {
  const auto e = [&](const Shape& shape, DType dtype = DType::float32) { return zeros(shape, {dtype, device()}); };
  EXPECT_TRUE(throws_with<ShapeError>([&] { matmul(e({2, 3}), e({4, 5})); },
                                      "matmul: a is [2, 3] and b is [4, 5]: the inner sizes 3 and 4 differ"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { matmul(e({3}), e({4})); }, "inner sizes 3 and 4"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { matmul(e({}), e({4})); }, "at least one dimension"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { matmul(e({2, 3, 4}), e({5, 4, 2})); }, "matmul"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { matmul(e({2, 3}, DType::boolean), e({3, 2})); }, "matmul: a is bool"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { matmul(e({2, 3}), e({3, 2}, DType::boolean)); }, "matmul: b is bool"));
  if (device().is_cuda()) {
    EXPECT_TRUE(throws_with<DeviceError>([&] { matmul(e({2, 3}), zeros({3, 2})); }, "matmul: a is on cuda:0, but b is on cpu"));
  }
}

class Linear : public DeviceTest {};
GLADE_DEVICE_TESTS(Linear);

TEST_P(Linear, Values) {
  for (const Shape& shape : {Shape{6, 5}, Shape{2, 3, 5}, Shape{5}, Shape{1, 5}, Shape{2, 1, 2, 5}}) {
    for (const std::int64_t out : {1, 4, 9}) {
      const Tensor x = random_tensor(shape, device()), weight = random_tensor({out, 5}, device()),
                   bias = random_tensor({out}, device());
      Shape result = shape;
      result[shape.ndim() - 1] = out;
      const Tensor product = reshape(loops(reshape(x, {-1, 5}), transpose(weight, 0, 1)), result);
      EXPECT_TRUE(all_close(linear(x, weight), product));
      EXPECT_TRUE(all_close(linear(x, weight, bias), product + to_data(bias, kCPU)));
    }
  }
}

TEST_P(Linear, Views) {
  const Tensor wide = random_tensor({2, 3, 10}, device()), x = slice(wide, 2, 5, 10);
  const Tensor weight = transpose(random_tensor({5, 4}, device()), 0, 1), bias = slice(random_tensor({8}, device()), 0, 0, 8, 2);
  const Tensor expected = matmul(contiguous(x), contiguous(transpose(weight, 0, 1))) + contiguous(bias);
  EXPECT_TRUE(all_close(linear(x, weight, bias), expected));
  EXPECT_TRUE(all_close(linear(transpose(x, 0, 1), weight, bias), transpose(expected, 0, 1)));
  EXPECT_TRUE(all_close(linear(slice(x, 1, 0, 2), weight, bias), slice(expected, 1, 0, 2)));
}

// The bias is added before the one rounding of the result.
TEST_P(Linear, DTypes) {
  struct Case {
    DType dtype;
    double tolerance;
  };
  for (const auto& [dtype, tolerance] :
       {Case{DType::float64, 1e-14}, Case{DType::float32, 2e-6}, Case{DType::bfloat16, 4e-3}, Case{DType::float16, 5e-4}})
    for (const auto& [rows, in, out] :
         std::vector<std::array<std::int64_t, 3>>{{37, 48, 64}, {1, 48, 64}, {5, 48, 1}, {8, 1, 16}, {3, 7, 5}, {1, 1, 1}}) {
      const Tensor x = random_tensor({rows, in}, device(), dtype), weight = random_tensor({out, in}, device(), dtype);
      const Tensor bias = random_tensor({out}, device(), dtype), y = linear(x, weight, bias);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_LT(relative_error(y, loops(x, transpose(weight, 0, 1)) + to_data(to_data(bias, DType::float64), kCPU)), tolerance)
          << dtype_name(dtype) << " " << rows << " " << in << " " << out;
    }
}

// Several blocks of the conversion to float32, in both directions.
TEST_P(Linear, LargeSixteenBit) {
  const Tensor x = random_tensor({300, 4200}, device(), DType::bfloat16),
               weight = random_tensor({530, 4200}, device(), DType::bfloat16);
  const Tensor bias = random_tensor({530}, device(), DType::bfloat16, 0, 100);
  const Tensor expected = linear(to_data(x, DType::float64), to_data(weight, DType::float64), to_data(bias, DType::float64));
  EXPECT_LT(relative_error(linear(x, weight, bias), expected), 4e-3);
}

TEST_P(Linear, Empty) {
  const Tensor bias = random_tensor({4}, device());
  EXPECT_TRUE(all_close(linear(random_tensor({2, 0}, device()), random_tensor({4, 0}, device()), bias), expand(bias, {2, 4})));
  EXPECT_EQ(linear(random_tensor({0, 3}, device()), random_tensor({4, 3}, device()), bias).shape(), (Shape{0, 4}));
}

TEST_P(Linear, Gradients) {
  const auto f = [](const Tensors& x) { return Tensors{linear(x[0], x[1], x.size() > 2 ? x[2] : Tensor())}; };
  for (const Shape& shape : {Shape{3, 4}, Shape{2, 3, 4}, Shape{4}}) {
    EXPECT_TRUE(
        autograd::gradcheck(f, {random_leaf(shape, device()), random_leaf({2, 4}, device()), random_leaf({2}, device())}));
    EXPECT_TRUE(
        autograd::gradgradcheck(f, {random_leaf(shape, device()), random_leaf({2, 4}, device()), random_leaf({2}, device())}));
    EXPECT_TRUE(autograd::gradcheck(f, {random_leaf(shape, device()), random_leaf({2, 4}, device())}));
  }
  const auto view = [](const Tensors& x) { return Tensors{linear(transpose(x[0], 0, 1), x[1], x[2])}; };
  EXPECT_TRUE(
      autograd::gradcheck(view, {random_leaf({3, 2, 4}, device()), random_leaf({2, 4}, device()), random_leaf({2}, device())}));
}

TEST_P(Linear, Errors) {
  const auto e = [&](const Shape& shape, DType dtype = DType::float32) { return zeros(shape, {dtype, device()}); };
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { linear(e({2, 3}), e({5, 4})); }, "linear: x is [2, 3], expected [..., 4] for weight [5, 4]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { linear(e({}), e({5, 4})); }, "linear: x is []"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { linear(e({2, 4}), e({4})); }, "linear: weight is [4], expected [out, in]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { linear(e({2, 4}), e({5, 4}), e({4})); }, "linear: bias is [4], expected [5]"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { linear(e({2, 4}, DType::int32), e({5, 4})); }, "linear: x is int32"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { linear(e({2, 4}), e({5, 4}), e({5}, DType::int64)); }, "linear: bias is int64"));
}

TEST_P(Matmul, LinearsEqualSeparateOnes) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    const DType wide = dtype == DType::float64 ? dtype : DType::float32;
    const auto leaf = [&](const Shape& shape, DType type) {
      return random_tensor(shape, device(), type).detach().set_requires_grad();
    };
    const Tensor x = leaf({3, 10, 24}, dtype), a = leaf({16, 24}, wide), b = leaf({40, 24}, wide), bias = leaf({40}, wide);
    const Tensors y = linears(x, {a, b}, {Tensor(), bias});
    const Tensor plain_a = linear(x, to(a, dtype)), plain_b = linear(x, to(b, dtype), to(bias, dtype));
    EXPECT_EQ(y[0].to_vector<double>(), plain_a.to_vector<double>()) << dtype_name(dtype);
    EXPECT_EQ(y[1].to_vector<double>(), plain_b.to_vector<double>()) << dtype_name(dtype);
    const Tensor grad_a = random_tensor({3, 10, 16}, device(), dtype), grad_b = random_tensor({3, 10, 40}, device(), dtype);
    const Tensors inputs{x, a, b, bias};
    const Tensors got = autograd::grad(y, inputs, {grad_a, grad_b});
    const Tensors expected = autograd::grad({plain_a, plain_b}, inputs, {grad_a, grad_b});
    const double rounding = dtype == DType::bfloat16  ? 0x1p-8
                            : dtype == DType::float16 ? 0x1p-11
                            : dtype == DType::float32 ? 1e-6
                                                      : 1e-14;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(got[i].dtype(), inputs[i].dtype());
      EXPECT_LT(relative_error(got[i], expected[i]), 2 * rounding) << dtype_name(dtype) << " " << i;  // each is rounded
    }
    // Not rounded to 16 bits on the way.
    const auto rows = [](const Tensor& t) { return to_data(reshape(t.detach(), {30, t.size(-1)}), DType::float64); };
    EXPECT_LT(relative_error(got[1], matmul(transpose(rows(grad_a), 0, 1), rows(x))), 1e-6) << dtype_name(dtype);
  }
}

TEST_P(Matmul, LinearsGradients) {
  const Tensor x = random_leaf({2, 3, 4}, device()), a = random_leaf({2, 4}, device()), b = random_leaf({3, 4}, device());
  const Tensor bias = random_leaf({3}, device());
  const auto f = [](const Tensors& in) { return linears(in[0], {in[1], in[2]}, {Tensor(), in[3]}); };
  EXPECT_TRUE(autograd::gradcheck(f, {x, a, b, bias}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {x, a, b, bias}));
  EXPECT_TRUE(autograd::gradcheck([&](const Tensors& in) { return Tensors{linears(in[0], {a, b})[1]}; }, {x}));
  EXPECT_EQ(linears(zeros({0, 4}, x.options()), {a})[0].shape(), (Shape{0, 2}));
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { linears(x, {a, zeros({2, 5}, x.options())}); }, "expected [..., 5] for weight 1 of [2, 5]"));
  EXPECT_TRUE(throws_with<ValueError>([&] { linears(x, {a, b}, {bias}); }, "linears: 1 biases for 2 weights"));
}

TEST_P(Matmul, LinearsAddInsideOfTheProduct) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    const DType wide = dtype == DType::float64 ? dtype : DType::float32;
    const Tensor x = random_tensor({3, 10, 24}, device(), dtype), a = random_tensor({16, 24}, device(), wide);
    const Tensor bias = random_tensor({16}, device(), wide), addend = random_tensor({16, 10, 3}, device(), dtype);
    const Tensor more = transpose(addend, 0, 2);
    // Rounded once, so nearer to the float64 values than the sum of a rounded product.
    const auto exact = [](const Tensor& t) { return to_data(t, DType::float64); };
    const Tensor expected = linear(exact(x), exact(to_data(a, dtype)), exact(to_data(bias, dtype))) + exact(more);
    const double rounding = dtype == DType::bfloat16  ? 0x1p-9
                            : dtype == DType::float16 ? 0x1p-12
                            : dtype == DType::float32 ? 1e-6
                                                      : 1e-14;
    EXPECT_LT(relative_error(linears(x, {a}, {bias}, {more})[0], expected), 1.01 * rounding) << dtype_name(dtype);
  }
  const Tensor x = random_leaf({2, 3, 4}, device()), a = random_leaf({2, 4}, device()), b = random_leaf({3, 4}, device());
  const Tensor addend = random_leaf({2, 3, 3}, device());
  const auto f = [](const Tensors& in) { return linears(in[0], {in[1], in[2]}, {}, {Tensor(), in[3]}); };
  EXPECT_TRUE(autograd::gradcheck(f, {x, a, b, addend}));
  EXPECT_TRUE(autograd::gradgradcheck(f, {x, a, b, addend}));
  const auto vector = [&](const Tensors& in) { return linears(in[0], {in[1]}, {}, {in[2]}); };
  EXPECT_TRUE(autograd::gradcheck(vector, {random_leaf({4}, device()), a, random_leaf({2}, device())}));
  const Tensor none = zeros({2, 0}, x.options()), empty_weight = zeros({3, 0}, x.options()), rows = ones({2, 3}, x.options());
  EXPECT_EQ(linears(none, {empty_weight}, {}, {rows})[0].to_vector<double>(), (std::vector<double>(6, 1.0)));
  EXPECT_TRUE(throws_with<ShapeError>([&] { linears(x, {a}, {}, {addend}); }, "addend 0 is [2, 3, 3], expected [2, 3, 2]"));
  EXPECT_TRUE(throws_with<ValueError>([&] { linears(x, {a, b}, {}, {addend}); }, "linears: 1 addends for 2 weights"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { linears(x, {b}, {}, {to(addend, DType::float32)}); }, "addend 0 is float32"));
}

// Gradients of weights are computed beside the pass on a GPU: the same bits come out, whatever runs meanwhile, of shared weights
// too.
TEST_P(Matmul, WeightGradientsOfALongChain) {
  const std::int64_t n = device().is_cuda() ? 1024 : 16, layers = 24;
  Tensors weights;
  for (int i = 0; i < 3; ++i)
    weights.push_back(
        (random_tensor({n, n}, device(), DType::float32) * (1 / std::sqrt(static_cast<double>(n)))).detach().set_requires_grad());
  const Tensor x = random_tensor({2 * n, n}, device(), DType::float32);
  const auto gradients = [&](bool recorded) {
    Tensor y = x;
    for (std::int64_t i = 0; i < layers; ++i) y = linears(y, {weights[static_cast<std::size_t>(i) % 3]})[0];
    Tensors out;
    for (const Tensor& g : autograd::grad({y}, weights, {x}, recorded, recorded)) out.push_back(g.detach());
    return out;
  };
  const Tensors expected = gradients(true);
  for (int run = 0; run < 3; ++run) {
    const Tensors got = gradients(false);
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_EQ(got[i].to_vector<float>(), expected[i].to_vector<float>()) << run << " " << i;
  }
}

TEST_P(Matmul, LinearsSeeChangedWeights) {
  const TensorOptions half{DType::bfloat16, device()};
  const Tensor x = ones({1, 2}, half), weight = ones({1, 2}, {DType::float32, device()}).set_requires_grad();
  EXPECT_EQ(linears(x, {weight})[0].item<double>(), 2);
  NoGradGuard no_grad;
  fill_(weight, 3);
  EXPECT_EQ(linears(x, {weight})[0].item<double>(), 6);
  EXPECT_EQ(linears(to(x, DType::float16), {weight})[0].item<double>(), 6);
  const Tensor y = linears(x, {weight})[0];
  EXPECT_EQ(y.item<double>(), 6);
}

// As NumPy and other libraries do, which no version counts.
TEST_P(Matmul, LinearsSeeWhatOthersWriteToWeights) {
  const Tensor x = ones({1, 2}, {DType::bfloat16, device()});
  const Tensor weight = ones({1, 2}, {DType::float32, device()}).set_requires_grad();
  const Tensor alias = Tensor::from_blob(weight.raw_data(), {1, 2}, {DType::float32, device()});
  const auto product = [&] { return linears(x, {weight})[0].item<double>(); };
  NoGradGuard no_grad;
  EXPECT_EQ(product(), 2);
  weight.storage()->lend();
  weight.storage()->lend();
  fill_(alias, 2);
  EXPECT_EQ(product(), 4);
  fill_(alias, 3);
  EXPECT_EQ(product(), 6);
  EXPECT_FALSE(autograd::find_weight_copy(weight).defined());
  weight.storage()->take_back();
  fill_(alias, 4);
  EXPECT_EQ(product(), 8);
  fill_(alias, 5);
  weight.storage()->take_back();
  EXPECT_EQ(product(), 10);
  EXPECT_TRUE(autograd::find_weight_copy(weight).defined());
}

// As of weights whose values are with other ranks.
TEST_P(Matmul, LinearsReadTheCopiesOfWeightsThatAreGiven) {
  const TensorOptions half{DType::bfloat16, device()};
  const auto weight = [&] {
    return full({8, 8}, std::numeric_limits<double>::quiet_NaN(), {DType::float32, device()}).set_requires_grad();
  };
  const Tensors weights{weight(), weight()};
  for (std::size_t i = 0; i < 2; ++i) autograd::set_weight_copy(weights[i], full({8, 8}, 1.0 + static_cast<double>(i), half));
  const Tensor x = ones({4, 8}, half);
  for (const Tensors& y : {linears(x, weights), Tensors{linears(x, {weights[0]})[0], linears(x, {weights[1]})[0]}}) {
    EXPECT_EQ(y[0].to_vector<double>(), std::vector<double>(32, 8));
    EXPECT_EQ(y[1].to_vector<double>(), std::vector<double>(32, 16));
  }
  const Tensors joined = autograd::weight_copies_joined(weights, DType::bfloat16);
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(joined[i].to_vector<double>(), std::vector<double>(64, 1.0 + static_cast<double>(i)));
}

}  // namespace
}  // namespace glade
