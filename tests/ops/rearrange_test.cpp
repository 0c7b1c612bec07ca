// Views and copies that PyTorch's users know: view, squeeze, narrow, chunk, unbind, repeat, roll, triangles; and what is written
// by position: scatter, index_add, nonzero.
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/random/random.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

Integers integers(const Tensor& x) { return x.to_vector<std::int64_t>(); }

class Rearrange : public DeviceTest {
 protected:
  Tensor counting(const Shape& shape) const { return reshape(arange(0, shape.numel(), 1, {DType::float64, device()}), shape); }
};
GLADE_DEVICE_TESTS(Rearrange);

void check_gradients(const std::function<Tensor(const Tensor&)>& f, const Tensor& x) {
  const auto function = [&](const Tensors& in) { return Tensors{f(in[0])}; };
  EXPECT_TRUE(autograd::gradcheck(function, {x}));
  EXPECT_TRUE(autograd::gradgradcheck(function, {x}));
}

TEST_P(Rearrange, ViewsDoNotCopy) {
  const Tensor x = counting({2, 6});
  EXPECT_EQ(view(x, {3, -1}).raw_data(), x.raw_data());
  EXPECT_EQ(view(x, {3, -1}).shape(), (Shape{3, 4}));
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { view(transpose(x, 0, 1), {12}); }, "cannot be seen as [12] without a copy: use reshape"));
  EXPECT_EQ(view(transpose(x, 0, 1), {6, 1, 2}).shape(), (Shape{6, 1, 2}));
}

TEST_P(Rearrange, SqueezeWithoutADimension) {
  const Tensor x = counting({1, 3, 1, 2, 1});
  EXPECT_EQ(squeeze(x).shape(), (Shape{3, 2}));
  EXPECT_EQ(squeeze(x).raw_data(), x.raw_data());
  EXPECT_EQ(squeeze(counting({1, 1})).shape(), (Shape{}));
}

TEST_P(Rearrange, NarrowChunkUnbind) {
  const Tensor x = counting({4, 5});
  EXPECT_TRUE(all_close(narrow(x, 1, 1, 3), slice(x, 1, 1, 4), 0, 0));
  EXPECT_TRUE(all_close(narrow(x, 0, -2, 2), slice(x, 0, 2, 4), 0, 0));
  EXPECT_EQ(narrow(x, 0, 4, 0).shape(), (Shape{0, 5}));
  EXPECT_TRUE(throws_with<IndexError>([&] { narrow(x, 1, 3, 3); }, "narrow: start 3 and length 3 go beyond dimension 1"));
  const Tensors thirds = chunk(x, 3, 1);
  ASSERT_EQ(thirds.size(), 3u);
  EXPECT_EQ(thirds[0].shape(), (Shape{4, 2}));
  EXPECT_EQ(thirds[2].shape(), (Shape{4, 1}));
  EXPECT_EQ(chunk(x, 9, 1).size(), 5u);
  EXPECT_EQ(chunk(zeros({0, 2}, {DType::float32, device()}), 3).size(), 3u);
  EXPECT_TRUE(throws_with<ValueError>([&] { chunk(x, 0); }, "chunk: chunks is 0"));
  const Tensors columns = unbind(x, 1);
  ASSERT_EQ(columns.size(), 5u);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_TRUE(all_close(columns[static_cast<std::size_t>(i)], select(x, 1, i), 0, 0));
  const Tensor leaf = random_leaf({3, 4}, device());
  check_gradients([](const Tensor& t) { return unbind(t, 1)[2] * chunk(t, 2, 1)[0]; }, random_leaf({1, 4}, device()));
  check_gradients([](const Tensor& t) { return square(narrow(t, 1, 1, 2)); }, leaf);
}

TEST_P(Rearrange, Repeat) {
  const Tensor x = counting({2, 3});
  EXPECT_EQ(repeat(x, {2, 2}).to_vector<double>(),
            (Values{0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5, 0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5}));
  EXPECT_EQ(repeat(x, {3, 1, 2}).shape(), (Shape{3, 2, 6}));
  EXPECT_TRUE(all_close(select(repeat(x, {3, 1, 1}), 0, 2), x, 0, 0));
  EXPECT_EQ(repeat(x, {0, 1}).shape(), (Shape{0, 3}));
  EXPECT_NE(repeat(x, {1, 1}).raw_data(), x.raw_data());
  EXPECT_TRUE(throws_with<ShapeError>([&] { repeat(x, {2}); }, "repeat: repeats [2] has fewer dimensions than x [2, 3]"));
  check_gradients([](const Tensor& t) { return square(repeat(t, {2, 1, 3})); }, random_leaf({2, 2}, device()));
}

TEST_P(Rearrange, Roll) {
  const Tensor x = counting({2, 3});
  EXPECT_EQ(roll(x, {1}).to_vector<double>(), (Values{5, 0, 1, 2, 3, 4}));
  EXPECT_EQ(roll(x, {1}, {1}).to_vector<double>(), (Values{2, 0, 1, 5, 3, 4}));
  EXPECT_EQ(roll(x, {-1, 7}, {1, 0}).to_vector<double>(), (Values{4, 5, 3, 1, 2, 0}));
  EXPECT_TRUE(throws_with<ValueError>([&] { roll(x, {1, 2}, {0}); }, "roll: 2 shifts for 1 dimensions"));
  check_gradients([](const Tensor& t) { return square(roll(t, {2}, {0})); }, random_leaf({3, 2}, device()));
}

TEST_P(Rearrange, Triangles) {
  const Tensor x = counting({2, 3, 4}) + 1.0;
  for (const std::int64_t diagonal : {-4, -1, 0, 1, 2, 9}) {
    const Values low = tril(x, diagonal).to_vector<double>(), up = triu(x, diagonal).to_vector<double>();
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const std::int64_t offset = i % 4 - i / 4 % 3;
      EXPECT_EQ(low[static_cast<std::size_t>(i)], offset <= diagonal ? double(i + 1) : 0);
      EXPECT_EQ(up[static_cast<std::size_t>(i)], offset >= diagonal ? double(i + 1) : 0);
    }
  }
  EXPECT_EQ(integers(tril(ones({2, 2}, {DType::boolean, device()}))), (Integers{1, 0, 1, 1}));
  EXPECT_EQ(tril(ones({2, 2}, {DType::boolean, device()})).dtype(), DType::boolean);
  EXPECT_TRUE(throws_with<ShapeError>([&] { tril(counting({3})); }, "tril: x is [3]"));
  check_gradients([](const Tensor& t) { return square(triu(t)); }, random_leaf({3, 3}, device()));
}

TEST_P(Rearrange, TrianglesOfEveryWidth) {
  for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float32, DType::float64})
    for (const Shape& shape : {Shape{1, 1}, Shape{5, 64}, Shape{2, 67, 33}, Shape{3, 40, 128}, Shape{130, 16}, Shape{3, 0, 4}})
      for (const std::int64_t diagonal : {-200, -33, -16, -1, 0, 1, 15, 16, 17, 500}) {
        const Tensor x = to_data(counting(shape) % 97 + 1.0, dtype), below = tril(x, diagonal), above = triu(x, diagonal);
        const Values all = x.to_vector<double>(), low = below.to_vector<double>(), up = above.to_vector<double>();
        const std::int64_t columns = shape[shape.ndim() - 1], rows = shape[shape.ndim() - 2];
        for (std::int64_t i = 0; i < x.numel(); ++i) {
          const std::int64_t offset = i % columns - i / columns % rows;
          const auto at = static_cast<std::size_t>(i);
          ASSERT_EQ(low[at], offset <= diagonal ? all[at] : 0) << shape.str() << ' ' << diagonal << ' ' << i;
          ASSERT_EQ(up[at], offset >= diagonal ? all[at] : 0) << shape.str() << ' ' << diagonal << ' ' << i;
        }
        const Tensor shifted =
            slice(to_data(counting({x.numel() + 1}), dtype), 0, 1, x.numel() + 1);  // begins at no whole vector
        EXPECT_EQ((tril(reshape(shifted, shape), diagonal) + triu(reshape(shifted, shape), diagonal + 1)).to_vector<double>(),
                  shifted.to_vector<double>());
      }
  const Tensor x = counting({40, 30});
  EXPECT_EQ(tril(transpose(x, 0, 1), 2).to_vector<double>(), transpose(triu(x, -2), 0, 1).to_vector<double>());
  EXPECT_EQ(tril(full({2, 2}, NAN, x.options())).to_vector<double>()[1], 0);
}

TEST_P(Rearrange, ScatterByDefinition) {
  for (const std::int64_t dim : {0, 1, 2}) {
    Shape shape{4, 5, 6};
    shape[static_cast<int>(dim)] = 9;  // more than places: some are written several times
    const Tensor x = random_tensor({4, 5, 6}, device()), source = random_tensor(shape, device());
    const std::int64_t n = x.size(dim);
    const Tensor indices = to_data(randint(0, n, shape), device());
    Values expected = x.to_vector<double>();
    const Values s = source.to_vector<double>();
    const Integers p = integers(indices);
    const Strides from = shape.contiguous_strides(), to = x.shape().contiguous_strides();
    for (std::size_t i = 0; i < s.size(); ++i) {
      std::int64_t at = 0;
      for (int d = 0; d < 3; ++d) at += (d == dim ? p[i] : static_cast<std::int64_t>(i) / from[d] % shape[d]) * to[d];
      expected[static_cast<std::size_t>(at)] = s[i];
    }
    EXPECT_EQ(scatter(x, dim, indices, source).to_vector<double>(), expected);
    const Tensor filled = scatter(x, dim, indices, 7);
    EXPECT_TRUE(all_close(filled, scatter(x, dim, indices, full(shape, 7, x.options())), 0, 0));
  }
  const Tensor positions = Tensor::from_vector(Integers{0, 2, 2, 1, 0, 0}, {2, 3}, device());
  const auto f = [&](const Tensors& in) { return Tensors{square(scatter(in[0], 1, positions, in[1]))}; };
  const Tensors leaves{random_leaf({2, 4}, device()), random_leaf({2, 3}, device())};
  EXPECT_TRUE(autograd::gradcheck(f, leaves));
  EXPECT_TRUE(autograd::gradgradcheck(f, leaves));
  const Tensor x = counting({2, 4});
  EXPECT_TRUE(throws_with<ShapeError>([&] { scatter(x, 1, positions, counting({2, 2})); },
                                      "scatter: source is [2, 2] and indices is [2, 3]"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { scatter(to_data(x, DType::int64), 1, positions, 0.5); }, "int64 cannot hold 0.5"));
}

TEST_P(Rearrange, IndexAdd) {
  const Tensor x = counting({3, 2}), indices = Tensor::from_vector(Integers{2, 0, 2}, device());
  const Tensor source = Tensor::from_vector(Values{10, 20, 30, 40, 50, 60}, {3, 2}, device());
  EXPECT_EQ(index_add(x, 0, indices, source).to_vector<double>(), (Values{30, 41, 2, 3, 64, 85}));
  const auto f = [&](const Tensors& in) { return Tensors{square(index_add(in[0], 1, indices, in[1]))}; };
  EXPECT_TRUE(autograd::gradcheck(f, {random_leaf({2, 3}, device()), random_leaf({2, 3}, device())}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { index_add(x, 0, indices, counting({2, 2})); },
                                      "index_add: source is [2, 2]: expected [3, 2]"));
}

TEST_P(Rearrange, Nonzero) {
  const Tensor x = Tensor::from_vector(Values{0, 1, 0, NAN, 0, -2}, {2, 3}, device());
  EXPECT_EQ(integers(nonzero(x)), (Integers{0, 1, 1, 0, 1, 2}));
  EXPECT_EQ(nonzero(x).shape(), (Shape{3, 2}));
  EXPECT_EQ(integers(nonzero(transpose(x, 0, 1))), (Integers{0, 1, 1, 0, 2, 1}));
  EXPECT_EQ(nonzero(zeros({4}, x.options())).shape(), (Shape{0, 1}));
  EXPECT_EQ(nonzero(full({}, 3.0, x.options())).shape(), (Shape{1, 0}));
}

}  // namespace
}  // namespace glade
