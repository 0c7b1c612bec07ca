#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <numeric>

#include "support/testing.h"

namespace glade {
namespace {

using autograd::gradcheck;
using autograd::gradgradcheck;
using testing_support::all_close;
using testing_support::DeviceTest;
using testing_support::random_leaf;
using testing_support::random_tensor;
using testing_support::throws_with;

using Indices = std::vector<std::int64_t>;

class IndexTest : public DeviceTest {
 protected:
  Tensor counting(const Shape& shape, DType dtype = DType::float64) const {
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    std::iota(values.begin(), values.end(), 0);
    return to_data(to_data(Tensor::from_vector(values, shape), dtype), device());
  }
  Tensor indices(const Indices& values, const Shape& shape) const { return Tensor::from_vector(values, shape, device()); }
  Tensor indices(const Indices& values) const { return Tensor::from_vector(values, device()); }
  Tensor random(const Shape& shape, DType dtype = DType::float64) const { return random_tensor(shape, device(), dtype); }
  Tensor leaf(const Shape& shape) const { return random_leaf(shape, device()); }
};
GLADE_DEVICE_TESTS(IndexTest);

/// Random positions in [0, n), a third of them the same.
Indices random_indices(std::int64_t count, std::int64_t n) {
  static std::mt19937_64 engine(7);
  Indices result(static_cast<std::size_t>(count));
  for (auto& i : result) i = engine() % 3 == 0 ? n / 2 : static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n));
  return result;
}

/// gather by the definition, or scatter_add with `source`, over [outer, n, inner] and [outer, m, inner].
std::vector<double> gathered(const std::vector<double>& x, const Indices& index, std::size_t outer, std::size_t n, std::size_t m,
                             std::size_t inner) {
  std::vector<double> y(outer * m * inner);
  for (std::size_t o = 0; o < outer; ++o)
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t k = 0; k < inner; ++k) {
        const std::size_t i = (o * m + j) * inner + k;
        y[i] = x[(o * n + static_cast<std::size_t>(index[i])) * inner + k];
      }
  return y;
}
std::vector<double> scattered(std::vector<double> x, const Indices& index, const std::vector<double>& source, std::size_t outer,
                              std::size_t n, std::size_t m, std::size_t inner) {
  for (std::size_t o = 0; o < outer; ++o)
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t k = 0; k < inner; ++k) {
        const std::size_t i = (o * m + j) * inner + k;
        x[(o * n + static_cast<std::size_t>(index[i])) * inner + k] += source[i];
      }
  return x;
}

TEST_P(IndexTest, Embedding) {
  const Tensor weight = counting({4, 3});
  const Tensor y = embedding(indices({3, 0, 1, 1}, {2, 2}), weight);
  EXPECT_EQ(y.shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{9, 10, 11, 0, 1, 2, 3, 4, 5, 3, 4, 5}));
  const Tensor narrow = to_data(indices({2, 0}), DType::int32);
  EXPECT_EQ(embedding(narrow, transpose(counting({3, 4}), 0, 1)).to_vector<double>(), (std::vector<double>{2, 6, 10, 0, 4, 8}));
  EXPECT_EQ(embedding(indices({1}, {}), weight).shape(), (Shape{3}));
  EXPECT_EQ(embedding(indices({}, {2, 0}), weight).shape(), (Shape{2, 0, 3}));
  EXPECT_EQ(embedding(transpose(indices({0, 1, 2, 3}, {2, 2}), 0, 1), weight).to_vector<double>(),
            (std::vector<double>{0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11}));
}

TEST_P(IndexTest, EmbeddingGradient) {
  const Tensor positions = indices({3, 0, 1, 1, 3, 1}, {2, 3});
  const auto f = [&](const Tensors& in) { return Tensors{square(embedding(positions, in[0]))}; };
  EXPECT_TRUE(gradcheck(f, {leaf({5, 3})}));
  EXPECT_TRUE(gradgradcheck(f, {leaf({5, 3})}));
}

TEST_P(IndexTest, EmbeddingPaddingGetsNoGradient) {
  const Tensor weight = leaf({3, 2}), positions = indices({1, 2, 1, 0});
  const Tensor y = embedding(positions, weight, 1);
  EXPECT_TRUE(all_close(select(y, 0, 0), select(weight, 0, 1)));  // its row is read all the same
  // Even an infinite gradient is left out, not multiplied by zero.
  y.backward(Tensor::from_vector<double>({INFINITY, NAN, 1, 2, 3, 4, 5, 6}, {4, 2}, device()));
  EXPECT_EQ(weight.grad().to_vector<double>(), (std::vector<double>{5, 6, 0, 0, 1, 2}));
  EXPECT_TRUE(throws_with<ValueError>([&] { embedding(positions, weight, 3); }, "padding_idx is 3, but weight is [3, 2]"));
}

// Against sums in the test, at sizes where CUDA's sums go through many chunks, with rows that are and are not a multiple
// of 16 bytes.
TEST_P(IndexTest, EmbeddingGradientOfManyTokens) {
  struct Case {
    std::int64_t n, m, d;
  };
  for (const auto& [n, m, d] : {Case{50, 3001, 64}, {7, 1000, 33}, {1, 257, 8}, {40000, 500, 16}, {300, 64, 300}, {3, 96, 1}}) {
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
      const Indices positions = random_indices(m, n);
      Tensor weight = random({n, d}, dtype).set_requires_grad();
      const Tensor grad = random({m, d}, dtype);
      embedding(indices(positions), weight).backward(grad);
      const auto g = grad.to_vector<double>();
      std::vector<double> expected(static_cast<std::size_t>(n * d)), magnitude(expected);
      for (std::size_t j = 0; j < positions.size(); ++j)
        for (std::size_t k = 0; k < static_cast<std::size_t>(d); ++k) {
          const std::size_t at = static_cast<std::size_t>(positions[j] * d) + k, from = j * static_cast<std::size_t>(d) + k;
          expected[at] += g[from];
          magnitude[at] += std::abs(g[from]);
        }
      // Rounding of the sums, relative to the sum of magnitudes, and of the result to its type.
      const double sum_error = dtype == DType::float64 ? 1e-13 : 1e-5;
      const double result_error = dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-10 : 0;
      const auto result = weight.grad().to_vector<double>();
      for (std::size_t i = 0; i < result.size(); ++i)
        ASSERT_NEAR(result[i], expected[i], sum_error * magnitude[i] + result_error * std::abs(expected[i]))
            << dtype_name(dtype) << " n " << n << " m " << m << " d " << d << " element " << i;
    }
  }
}

TEST_P(IndexTest, GradientsAreTheSameBitsEveryTime) {
  const Tensor positions = indices(random_indices(20000, 100)), grad = random({20000, 48}, DType::float32);
  std::vector<double> first;
  for (int run = 0; run < 3; ++run) {
    const Tensor weight = random({100, 48}, DType::float32).set_requires_grad();
    embedding(positions, weight).backward(grad);
    const auto result = weight.grad().to_vector<double>();
    if (run == 0) first = result;
    EXPECT_EQ(result, first);
  }
}

TEST_P(IndexTest, IndexSelect) {
  const Tensor x = counting({2, 3, 2});
  EXPECT_EQ(index_select(x, 1, indices({2, 0, 2})).to_vector<double>(),
            (std::vector<double>{4, 5, 0, 1, 4, 5, 10, 11, 6, 7, 10, 11}));
  EXPECT_EQ(index_select(x, -1, indices({1})).to_vector<double>(), (std::vector<double>{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(index_select(transpose(x, 0, 2), 0, indices({1})).to_vector<double>(), (std::vector<double>{1, 7, 3, 9, 5, 11}));
  EXPECT_EQ(index_select(slice(x, 1, 1, 3), 1, slice(indices({1, 9, 0, 9}), 0, 0, 4, 2)).to_vector<double>(),
            (std::vector<double>{4, 5, 2, 3, 10, 11, 8, 9}));
  EXPECT_EQ(index_select(x, 1, indices({})).shape(), (Shape{2, 0, 2}));
  EXPECT_EQ(index_select(counting({2, 3, 0}), 1, indices({1})).shape(), (Shape{2, 1, 0}));
}

TEST_P(IndexTest, IndexSelectEveryDType) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32,
                            DType::uint8, DType::boolean}) {
    for (const std::int64_t inner : {1, 3, 16}) {  // 16 elements of any type make whole 16-byte units
      const Tensor x = to_data(counting({5, inner}, DType::uint8), dtype), y = index_select(x, 0, indices({4, 0, 4}));
      EXPECT_EQ(y.dtype(), dtype);
      const Tensor expected = cat({select(x, 0, 4), select(x, 0, 0), select(x, 0, 4)});
      EXPECT_EQ(y.to_vector<double>(), expected.to_vector<double>()) << dtype_name(dtype) << " " << inner;
    }
  }
}

TEST_P(IndexTest, IndexSelectGradient) {
  for (const std::int64_t dim : {0, 1, 2}) {
    const auto f = [&](const Tensors& in) { return Tensors{square(index_select(in[0], dim, indices({1, 0, 1, 1})))}; };
    EXPECT_TRUE(gradcheck(f, {leaf({2, 3, 4})}));
    EXPECT_TRUE(gradgradcheck(f, {leaf({2, 3, 4})}));
  }
}

TEST_P(IndexTest, GatherAndScatterAddByDefinition) {
  struct Case {
    std::size_t outer, n, m, inner;
  };
  for (const auto& [outer, n, m, inner] :
       {Case{1, 5, 7, 1}, {3, 4, 2, 1}, {2, 3, 5, 4}, {1, 9, 40, 33}, {17, 1, 3, 5}, {1, 3000, 20000, 1}}) {
    const auto size = [](std::size_t a, std::size_t b, std::size_t c) {
      return Shape{static_cast<std::int64_t>(a), static_cast<std::int64_t>(b), static_cast<std::int64_t>(c)};
    };
    for (const DType dtype : {DType::float64, DType::float32, DType::int64, DType::int32}) {
      const Tensor x = to_data(random(size(outer, n, inner)) * 100.0, dtype),
                   source = to_data(random(size(outer, m, inner)) * 100.0, dtype);
      const Indices index = random_indices(source.numel(), static_cast<std::int64_t>(n));
      const Tensor positions = indices(index, source.shape());
      EXPECT_EQ(gather(x, 1, positions).to_vector<double>(), gathered(x.to_vector<double>(), index, outer, n, m, inner));
      const Tensor sums = scatter_add(x, -2, to_data(positions, DType::int32), source);
      EXPECT_EQ(sums.dtype(), dtype);
      const auto expected = scattered(x.to_vector<double>(), index, source.to_vector<double>(), outer, n, m, inner);
      // Up to 20000 terms of size 100 with both signs meet in a place.
      const double tolerance = dtype == DType::float64 ? 1e-8 : dtype == DType::float32 ? 2 : 0;
      const auto result = sums.to_vector<double>();
      for (std::size_t i = 0; i < result.size(); ++i) ASSERT_NEAR(result[i], expected[i], tolerance) << dtype_name(dtype);
    }
  }
}

// Enough rows that a GPU takes them one by one, of sizes that are and are not a multiple of 16 bytes.
TEST_P(IndexTest, GatherAlongManyRows) {
  for (const std::int64_t n : {1, 40, 41, 6000, 6500})
    for (const std::int64_t m : {1, 31, 5000}) {
      const std::int64_t outer = n > 100 ? 130 : 200;
      const Tensor positions = indices(random_indices(outer * m, n), {outer, m}), line = select(positions, 0, 0);
      for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::uint8}) {
        const Tensor x = to_data(abs(random({outer, n}, DType::float32)) * 50.0, dtype), here = to_data(x, kCPU);
        EXPECT_TRUE(all_close(to_data(gather(x, 1, positions), kCPU), gather(here, 1, to_data(positions, kCPU)), 0, 0)) << n;
        EXPECT_TRUE(all_close(to_data(index_select(x, 1, line), kCPU), index_select(here, 1, to_data(line, kCPU)), 0, 0)) << n;
      }
    }
  if (device().is_cpu()) return;
  const Tensor bad = expand(indices({0, -1, 2, INT64_MAX}, {1, 4}), {200, 4}),
               y = gather(ones({200, 2}, {DType::float32, device()}), 1, bad);
  for (const std::int64_t row : {0, 199})
    EXPECT_TRUE(all_close(select(y, 0, row), Tensor::from_vector<float>({1, NAN, NAN, NAN}, device())));
}

TEST_P(IndexTest, GatherOfViews) {
  const Tensor x = counting({3, 2}), positions = indices({0, 2, 1, 1}, {2, 2});
  // x^T is [2, 3]; positions^T is [[0, 1], [2, 1]].
  EXPECT_EQ(gather(transpose(x, 0, 1), 1, transpose(positions, 0, 1)).to_vector<double>(), (std::vector<double>{0, 2, 5, 3}));
  EXPECT_EQ(gather(expand(counting({1, 3}), {2, 3}), 1, expand(indices({2}, {1, 1}), {2, 1})).to_vector<double>(),
            (std::vector<double>{2, 2}));
  EXPECT_EQ(gather(x, 1, indices({}, {3, 0})).shape(), (Shape{3, 0}));
}

TEST_P(IndexTest, ScatterAddOfViews) {
  const Tensor x = transpose(counting({2, 2}), 0, 1), source = expand(counting({1, 1}) + 10.0, {2, 3});
  const Tensor y = scatter_add(x, 1, indices({0, 0, 1, 1, 1, 1}, {2, 3}), source);
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{20, 12, 1, 33}));
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{0, 2, 1, 3}));
  EXPECT_EQ(scatter_add(x, 1, indices({}, {2, 0}), counting({2, 0})).to_vector<double>(), x.to_vector<double>());
  const Tensor rows = slice(counting({4, 2}), 0, 1, 3), columns = slice(indices({9, 9, 0, 1, 1, 1}, {3, 2}), 0, 1, 3);
  for (const Tensor& to : {zeros({2, 2}, rows.options()), slice(zeros({3, 2}, rows.options()), 0, 1, 3)})
    EXPECT_EQ(scatter_add(to, 0, columns, rows).to_vector<double>(), (std::vector<double>{2, 0, 4, 8}));
}

// Rows that a GPU's shared memory holds and rows that it does not, few and many, short and long.
TEST_P(IndexTest, AddingAlongManyRows) {
  struct Case {
    std::int64_t outer, n, m;
  };
  for (const auto& [outer, n, m] : {Case{200, 1, 1},
                                    {150, 33, 1000},
                                    {3, 12288, 4097},
                                    {2, 12289, 300},
                                    {2, 24577, 257},
                                    {1, 100, 32768},
                                    {1, 100, 32769},
                                    {130, 50, 33000}}) {
    const Tensor positions = indices(random_indices(outer * m, n), {outer, m}), line = select(positions, 0, 0);
    for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::int64, DType::int32}) {
      const Tensor x = to_data(random({outer, n}) * 30.0, dtype), source = to_data(random({outer, m}) * 30.0, dtype);
      const auto same = [&, n = n](const Tensor& result, const Tensor& expected, const Tensor& terms) {
        // Of the sums of magnitudes, and of the result.
        const double sum_error = dtype == DType::float64 ? 1e-13 : is_floating(dtype) ? 1e-5 : 0;
        const double result_error = dtype == DType::bfloat16 ? 0x1p-7 : 0;
        const Tensor difference = abs(to_data(to_data(result, kCPU), DType::float64) - to_data(expected, DType::float64));
        const Tensor allowed = to_data(terms, DType::float64) * sum_error + abs(to_data(expected, DType::float64)) * result_error;
        EXPECT_TRUE(all(le(difference, allowed)).item<bool>()) << dtype_name(dtype) << ' ' << n;
      };
      const Tensor x_here = to_data(x, kCPU), source_here = to_data(source, kCPU), positions_here = to_data(positions, kCPU),
                   line_here = select(positions_here, 0, 0);
      const auto wide = [](const Tensor& given) { return abs(to_data(given, DType::float64)); };
      const Tensor terms = scatter_add(wide(x_here), 1, positions_here, wide(source_here)),
                   line_terms = index_add(wide(x_here), 1, line_here, wide(source_here));
      const Tensor sums = scatter_add(x, 1, positions, source);
      same(sums, scatter_add(x_here, 1, positions_here, source_here), terms);
      same(index_add(x, 1, line, source), index_add(x_here, 1, line_here, source_here), line_terms);
      const Tensor upright = scatter_add(transpose(x, 0, 1), 0, transpose(positions, 0, 1), transpose(source, 0, 1));
      same(transpose(upright, 0, 1), scatter_add(x_here, 1, positions_here, source_here), terms);
      EXPECT_EQ(scatter_add(x, 1, positions, source).to_vector<double>(), sums.to_vector<double>());
    }
  }
}

// 16-bit sums are taken in float32: 4096 ones would stop growing at 256 (2048) otherwise.
TEST_P(IndexTest, ScatterAddOf16BitTypes) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    const Tensor sums =
        scatter_add(zeros({2}, {dtype, device()}), 0, zeros({4096}, {DType::int64, device()}), ones({4096}, {dtype, device()}));
    EXPECT_EQ(sums.dtype(), dtype);
    EXPECT_EQ(sums.to_vector<double>(), (std::vector<double>{4096, 0}));
  }
}

TEST_P(IndexTest, GatherAndScatterAddGradients) {
  const Tensor positions = indices({0, 2, 2, 1, 0, 0, 1, 1}, {2, 2, 2});
  const auto gathering = [&](const Tensors& in) { return Tensors{square(gather(in[0], 1, positions))}; };
  EXPECT_TRUE(gradcheck(gathering, {leaf({2, 3, 2})}));
  EXPECT_TRUE(gradgradcheck(gathering, {leaf({2, 3, 2})}));
  const auto adding = [&](const Tensors& in) { return Tensors{square(scatter_add(in[0], 1, positions, in[1]))}; };
  EXPECT_TRUE(gradcheck(adding, {leaf({2, 3, 2}), leaf({2, 2, 2})}));
  EXPECT_TRUE(gradgradcheck(adding, {leaf({2, 3, 2}), leaf({2, 2, 2})}));
}

TEST_P(IndexTest, OneHot) {
  const Tensor y = one_hot(to_data(indices({2, 0, 1, 1}, {2, 2}), DType::int32), 3);
  EXPECT_EQ(y.dtype(), DType::int64);
  EXPECT_EQ(y.shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(y.to_vector<std::int64_t>(), (Indices{0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(one_hot(indices({1}, {}), 2).to_vector<std::int64_t>(), (Indices{0, 1}));
  EXPECT_EQ(one_hot(indices({}), 4).shape(), (Shape{0, 4}));
}

// Indices that reach only a part of x, and a source larger than they are.
TEST_P(IndexTest, IndicesSmallerThanTheRest) {
  const Tensor x = counting({3, 4, 2}), i = indices({2, 0, 1, 1, 3, 3}, {2, 3, 1});
  EXPECT_EQ(gather(x, 1, i).to_vector<double>(), (std::vector<double>{4, 0, 2, 10, 14, 14}));
  const Tensor source = counting({2, 5, 2}) + 100;
  std::vector<double> added = x.to_vector<double>(), written = added;
  const std::size_t at[] = {4, 0, 2, 10, 14, 14};
  const double values[] = {100, 102, 104, 110, 112, 114};
  for (std::size_t k = 0; k < 6; ++k) {
    added[at[k]] += values[k];
    written[at[k]] = values[k];
  }
  EXPECT_EQ(scatter_add(x, 1, i, source).to_vector<double>(), added);
  EXPECT_EQ(scatter(x, 1, i, source).to_vector<double>(), written);
  for (const std::size_t place : at) written[place] = -1;
  EXPECT_EQ(scatter(x, 1, i, -1).to_vector<double>(), written);
  EXPECT_EQ(gather(x, 1, indices({}, {0, 3, 1})).shape(), (Shape{0, 3, 1}));
  EXPECT_EQ(scatter_add(x, 1, indices({}, {0, 3, 1}), source).to_vector<double>(), x.to_vector<double>());
  const auto f = [&](const Tensors& in) {
    return Tensors{square(gather(in[0], 1, i)), square(scatter_add(in[0], 1, i, in[1])), square(scatter(in[0], 1, i, in[1]))};
  };
  EXPECT_TRUE(gradcheck(f, {leaf({3, 4, 2}), leaf({2, 5, 2})}));
  EXPECT_TRUE(gradgradcheck(f, {leaf({3, 4, 2}), leaf({2, 5, 2})}));
}

TEST_P(IndexTest, ChangingTheIndicesIsSeenByTheTape) {
  const Tensor positions = indices({0, 1});
  const Tensor loss = sum(embedding(positions, leaf({2, 2})));
  fill_data(positions, 1);
  EXPECT_TRUE(throws_with<AutogradError>([&] { loss.backward(); }, "changed in place"));
}

TEST_P(IndexTest, Errors) {
  const Tensor x = counting({2, 3}), i = indices({0, 1});
  EXPECT_TRUE(throws_with<ShapeError>([&] { embedding(i, counting({4})); }, "embedding: weight is [4]"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { embedding(counting({2}), x); }, "embedding: indices is float64"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { one_hot(counting({2}, DType::uint8), 3); }, "one_hot: indices is uint8"));
  EXPECT_TRUE(throws_with<ValueError>([&] { one_hot(i, -1); }, "classes is -1"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { index_select(x, 0, indices({0}, {1, 1})); }, "indices is [1, 1]"));
  EXPECT_TRUE(throws_with<IndexError>([&] { index_select(x, 2, i); }, "index_select"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { gather(x, 1, i); }, "gather: x is [2, 3] and indices is [2]"));
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { gather(x, 1, indices({0, 0, 0}, {3, 1})); },
                              "gather: x is [2, 3] and indices is [3, 1]: expected at most the sizes of x outside dimension 1"));
  const Tensor pairs = indices({0, 1, 1, 0}, {2, 2});
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { scatter_add(x, 1, pairs, counting({2, 1})); },
                              "scatter_add: source is [2, 1] and indices is [2, 2]: expected at most the sizes of source"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { scatter(x, 1, pairs, counting({1, 2})); }, "source is [1, 2] and indices is [2, 2]"));
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { scatter(x, 1, indices({0, 0, 0}, {3, 1}), 1.0); }, "x is [2, 3] and indices is [3, 1]"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { scatter_add(x, 1, pairs, counting({2, 2}, DType::float32)); }, "source is float32"));
  const Tensor bytes = counting({2, 3}, DType::uint8);
  EXPECT_TRUE(throws_with<DTypeError>([&] { scatter_add(bytes, 1, pairs, counting({2, 2}, DType::uint8)); }, "x is uint8"));
  if (device().is_cuda()) {
    EXPECT_TRUE(throws_with<DeviceError>([&] { embedding(to_data(i, kCPU), x); }, "indices is on cpu"));
  }
}

// The two devices differ here by design: see index.h.
TEST_P(IndexTest, PositionsOutOfRange) {
  const Tensor x = leaf({3, 2}), whole = counting({3, 2}, DType::int64);
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{3}, INT64_MAX, INT64_MIN}) {
    const Tensor positions = indices({1, bad, 1}), aligned = indices({1, bad, 1, bad, 0, 0}, {3, 2});
    if (device().is_cpu()) {
      const std::string message = "element 1 of indices is " + std::to_string(bad) + ": expected 0 <= index < 3";
      EXPECT_TRUE(throws_with<IndexError>([&] { embedding(positions, x); }, "embedding: " + message));
      EXPECT_TRUE(throws_with<IndexError>([&] { index_select(x, 0, positions); }, "index_select: " + message));
      EXPECT_TRUE(throws_with<IndexError>([&] { gather(x, 0, aligned); }, "gather: " + message));
      EXPECT_TRUE(throws_with<IndexError>([&] { scatter_add(x, 0, aligned, x); }, "scatter_add: " + message));
      EXPECT_TRUE(throws_with<IndexError>([&] { one_hot(positions, 3); }, "one_hot: " + message));
      continue;
    }
    const auto values = x.to_vector<double>();
    const Tensor y = index_select(x, 0, positions);
    EXPECT_TRUE(all_close(y, Tensor::from_vector<double>({values[2], values[3], NAN, NAN, values[2], values[3]}, {3, 2})));
    EXPECT_EQ(index_select(whole, 0, positions).to_vector<double>(), (std::vector<double>{2, 3, 0, 0, 2, 3}));
    x.set_grad({});
    y.backward(counting({3, 2}) + 1.0);
    EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, 6, 8, 0, 0}));
    const Tensor sums = scatter_add(x, 0, aligned, counting({3, 2}));
    EXPECT_TRUE(all_close(sums, Tensor::from_vector<double>(
                                    {values[0] + 4, values[1] + 5, values[2] + 2, values[3], values[4], values[5]}, {3, 2})));
    EXPECT_EQ(one_hot(positions, 3).to_vector<double>(), (std::vector<double>{0, 1, 0, 0, 0, 0, 0, 1, 0}));
  }
}

// Every element by the definition: x[a][i][j][b], where i and j broadcast, are of different types, and some count from the end.
TEST_P(IndexTest, SeveralIndicesTogether) {
  struct Case {
    Shape shape;
    int dim;
  };
  for (const auto& [shape, dim] : {Case{{30, 40}, 0}, {{7, 6, 5}, 1}, {{6, 7, 8}, 0}, {{3, 9, 4, 2}, 1}, {{5, 300, 200, 1}, 1}})
    for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float32, DType::float64}) {
      const Tensor x = to_data(abs(random(shape, DType::float32)) * 50.0, dtype);
      const Indices first = random_indices(600, shape[dim]), second = random_indices(40, shape[dim + 1]);
      Indices given = first;
      for (std::size_t i = 0; i < given.size(); i += 3) given[i] -= shape[dim];
      const Tensor narrow = to_data(indices(second, {1, 40}), DType::int32);
      const Tensor y = index_at(x, dim, {indices(given, {15, 40}), narrow});
      const auto all = x.to_vector<double>(), got = y.to_vector<double>();
      std::size_t outer = 1, inner = 1, next = 0;
      for (int d = 0; d < dim; ++d) outer *= static_cast<std::size_t>(shape[d]);
      for (int d = dim + 2; d < shape.ndim(); ++d) inner *= static_cast<std::size_t>(shape[d]);
      ASSERT_EQ(got.size(), outer * 600 * inner);
      for (std::size_t o = 0; o < outer; ++o)
        for (std::size_t m = 0; m < 600; ++m)
          for (std::size_t k = 0; k < inner; ++k) {
            const std::int64_t row = (static_cast<std::int64_t>(o) * shape[dim] + first[m]) * shape[dim + 1] + second[m % 40];
            ASSERT_EQ(got[next++], all[static_cast<std::size_t>(row) * inner + k]) << shape.str();
          }
    }
  const Tensor x = counting({4, 6});
  EXPECT_EQ(index_at(x, 0, {indices({-1, 0})}).to_vector<double>(),
            (std::vector<double>{18, 19, 20, 21, 22, 23, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(index_at(transpose(x, 0, 1), 0, {indices({5, -6}), indices({1}, {})}).to_vector<double>(),
            (std::vector<double>{11, 6}));
  EXPECT_EQ(index_at(x, 1, {indices({}, {2, 0})}).shape(), (Shape{4, 2, 0}));
  EXPECT_EQ(index_at(x, 0, {indices({2}, {}), indices({-1}, {})}).to_vector<double>(), (std::vector<double>{17}));
  // Long enough rows, and enough of them, for the other kernels of a GPU.
  const Tensor wide = random({300, 2048}, DType::float32), lines = indices(random_indices(500, 300)),
               places = indices(random_indices(4000, 2048)), here = to_data(wide, kCPU);
  EXPECT_TRUE(all_close(to_data(index_at(wide, 0, {lines}), kCPU), index_select(here, 0, to_data(lines, kCPU)), 0, 0));
  EXPECT_TRUE(all_close(to_data(index_at(wide, 1, {places}), kCPU), index_select(here, 1, to_data(places, kCPU)), 0, 0));
}

TEST_P(IndexTest, WritingWhereSeveralIndicesRead) {
  const Tensor first = indices({1, -1, 1}), second = to_data(indices({2, 0, 2}), DType::int32);
  for (const DType dtype : {DType::float64, DType::bfloat16, DType::int64, DType::uint8}) {
    const Tensor whole = zeros({2, 4, 2, 3}, {dtype, device()}),
                 source = counting({3, 2}, dtype) + full({}, 1, {dtype, device()});
    for (const Tensor& x : {select(whole, 0, 0), permute(zeros({2, 4, 3}, whole.options()), {1, 0, 2})}) {
      index_put_(x, 0, {first, zeros({}, first.options()), second}, select(source, 1, 0));
      std::vector<double> expected(24);
      expected[8] = 5;  // [1, 0, 2], the last of two
      expected[18] = 3;
      EXPECT_EQ(x.to_vector<double>(), expected);
    }
    EXPECT_EQ(select(whole, 0, 1).to_vector<double>(), std::vector<double>(24));
  }
  const Tensor x = counting({4, 3});
  index_put_(x, 1, {indices({2, 0})}, slice(x, 1, 0, 2));  // reads before it writes
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1, 1, 0, 4, 4, 3, 7, 7, 6, 10, 10, 9}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { index_put_(x, 1, {indices({2, 0})}, zeros({3}, x.options())); }, "index_put_"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { index_put_(x, 0, {indices({1})}, zeros({3}, {DType::int64, device()})); }, "int64"));
  if (device().is_cpu())
    EXPECT_TRUE(throws_with<IndexError>([&] { index_put_(x, 0, {indices({4})}, zeros({3}, x.options())); }, "index_put_"));
  else index_put_(x, 0, {indices({4})}, zeros({3}, x.options()));  // writes nothing
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{1, 1, 0, 4, 4, 3, 7, 7, 6, 10, 10, 9}));
}

// In place and apart give the same, in views too, where the source is the tensor itself, and where indices reach less than all.
TEST_P(IndexTest, WritingInPlace) {
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::int64, DType::int32}) {
    const Tensor x = to_data(random({4, 5, 6}) * 100.0, dtype);
    const Tensor views[] = {clone(x), transpose(clone(transpose(x, 0, 2)), 0, 2), slice(cat({x, x}, 2), 2, 0, 6)};
    const Tensor at = indices(random_indices(3 * 7 * 4, 5), {3, 7, 4}), rows = indices({4, 0, 4, 4, 1});
    const Tensor source = to_data(random({4, 7, 5}) * 100.0, dtype), slices = to_data(random({4, 5, 6}) * 100.0, dtype);
    for (const Tensor& view : views) {
      const auto same = [&](const Tensor& expected, const auto& change) {
        const Tensor before = clone(view);
        change();
        EXPECT_EQ(view.to_vector<double>(), expected.to_vector<double>());
        copy_(view, before);
      };
      same(scatter(x, 1, at, source), [&] { scatter_(view, 1, at, source); });
      same(scatter(x, 1, at, 3), [&] { scatter_(view, 1, at, 3); });
      same(scatter_add(x, 1, at, source), [&] { scatter_add_(view, 1, at, source); });
      same(index_add(x, 1, rows, slices), [&] { index_add_(view, 1, rows, slices); });
      same(index_add(x, 1, rows, x), [&] { index_add_(view, 1, rows, view); });
    }
  }
  const Tensor x = indices({2, 0, 1});
  EXPECT_EQ(scatter_(x, 0, x, 7).to_vector<double>(), (std::vector<double>{7, 7, 7}));
}

TEST_P(IndexTest, SeveralIndicesTogetherGradients) {
  const Tensor i = indices({0, -1, 2, 1, 2, 2}, {2, 3}), j = indices({1, 0, -2});
  const auto f = [&](const Tensors& in) {
    return Tensors{square(index_at(in[0], 1, {i, j})), square(index_at(in[0], 0, {to_data(j, DType::int32)}))};
  };
  EXPECT_TRUE(gradcheck(f, {leaf({2, 3, 2, 2})}));
  EXPECT_TRUE(gradgradcheck(f, {leaf({2, 3, 2, 2})}));
}

TEST_P(IndexTest, SeveralIndicesTogetherErrors) {
  const Tensor x = counting({2, 3}), i = indices({0, 1});
  EXPECT_TRUE(throws_with<ShapeError>([&] { index_at(x, 1, {i, i}); }, "index_at: 2 index tensors from dimension 1 on of x"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { index_at(x, 0, {}); }, "index_at: 0 index tensors"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { index_at(x, 0, {i, indices({0, 1, 2})}); }, "index_at"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { index_at(x, 0, {counting({2})}); }, "index_at: indices is float64"));
  EXPECT_TRUE(throws_with<IndexError>([&] { index_at(x, 2, {i}); }, "index_at"));
  for (const std::int64_t bad : {std::int64_t{3}, std::int64_t{-4}, INT64_MAX, INT64_MIN}) {
    const Tensor j = indices({0, bad});
    if (device().is_cpu()) {
      const std::string message = "element 1 of indices[1] is " + std::to_string(bad) + ": expected -3 <= index < 3";
      EXPECT_TRUE(throws_with<IndexError>([&] { index_at(x, 0, {i, j}); }, message));
      continue;
    }
    const Tensor w = x.detach().set_requires_grad(), y = index_at(w, 0, {i, j});
    EXPECT_TRUE(all_close(y, Tensor::from_vector<double>({0, NAN}, device())));
    y.backward(counting({2}) + 1.0);
    EXPECT_EQ(w.grad().to_vector<double>(), (std::vector<double>{1, 0, 0, 0, 0, 0}));
  }
}

TEST_P(IndexTest, PositionsOfWhatIsNotZero) {
  for (const Shape& shape : {Shape{3, 5, 1031}, Shape{70001}, Shape{40, 1, 2}, Shape{0, 4}, Shape{}}) {
    const Indices numbers = random_indices(shape.numel(), 4);
    const Tensor x = to_data(Tensor::from_vector(numbers, shape, device()), DType::int64);
    Indices expected;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] == 0) continue;
      Indices place(static_cast<std::size_t>(shape.ndim()));
      auto rest = static_cast<std::int64_t>(i);
      for (int d = shape.ndim() - 1; d >= 0; rest /= shape[d--]) place[static_cast<std::size_t>(d)] = rest % shape[d];
      expected.insert(expected.end(), place.begin(), place.end());
    }
    for (const Tensor& given : {x, ne(x, 0), to_data(x, DType::float32)}) {
      const Tensor positions = nonzero(given);
      EXPECT_EQ(positions.to_vector<std::int64_t>(), expected) << shape.str();
      EXPECT_EQ(positions.ndim(), 2);
      EXPECT_EQ(positions.size(1), shape.ndim());
    }
  }
  const Tensor none = nonzero(zeros({300}, {DType::boolean, device()}));
  EXPECT_EQ(none.shape(), Shape({0, 1}));
}

}  // namespace
}  // namespace glade
