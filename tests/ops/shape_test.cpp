#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include <limits>
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

using Index = std::vector<std::int64_t>;
constexpr DType kAll[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16,
                          DType::int64,   DType::int32,   DType::uint8,    DType::boolean};

class ShapeTest : public DeviceTest {
 protected:
  /// 0, 1, 2, ... in row-major order: what an element is says where it came from.
  Tensor counting(const Shape& shape, DType dtype = DType::float64) const {
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    std::iota(values.begin(), values.end(), 0);
    return to_data(to_data(Tensor::from_vector(values, shape), dtype), device());
  }
  Tensor leaf(const Shape& shape) const { return random_leaf(shape, device()); }
};
GLADE_DEVICE_TESTS(ShapeTest);

/// Whether y has `shape` and its element at each index is x's element at source(index), for a row-major x that counts.
template <class F>
::testing::AssertionResult maps(const Tensor& y, const Shape& shape, const Shape& x_shape, const F& source) {
  if (!(y.shape() == shape)) return ::testing::AssertionFailure() << "shape " << y.shape().str() << ", not " << shape.str();
  const auto values = y.to_vector<double>();
  Index index(static_cast<std::size_t>(shape.ndim()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    for (int d = shape.ndim() - 1; d >= 0; --d) {
      index[static_cast<std::size_t>(d)] = rest % shape[d];
      rest /= shape[d];
    }
    const Index from = source(index);
    std::int64_t expected = 0;
    for (int d = 0; d < x_shape.ndim(); ++d) expected = expected * x_shape[d] + from[static_cast<std::size_t>(d)];
    if (values[i] != static_cast<double>(expected))
      return ::testing::AssertionFailure() << "element " << i << ": " << values[i] << ", not " << expected;
  }
  return ::testing::AssertionSuccess();
}

/// First and second derivatives of f at x.
template <class F>
void check_gradients(const F& f, const Tensors& inputs) {
  EXPECT_TRUE(gradcheck(f, inputs));
  EXPECT_TRUE(gradgradcheck(f, inputs));
}

TEST_P(ShapeTest, ReshapeOfRowMajorIsAView) {
  const Tensor x = counting({2, 3, 4});
  for (const Shape& shape : {Shape{24}, {4, 6}, {2, 1, 12, 1}, {3, -1}, {-1}, {2, 3, 2, 2}}) {
    const Tensor y = reshape(x, shape);
    EXPECT_EQ(y.storage(), x.storage());
    EXPECT_TRUE(y.is_contiguous());
    EXPECT_EQ(y.to_vector<double>(), x.to_vector<double>());
    EXPECT_EQ(y.numel(), 24);
  }
  EXPECT_EQ(reshape(x, {3, -1}).shape(), (Shape{3, 8}));
  EXPECT_EQ(reshape(counting({1}), {}).ndim(), 0);
  EXPECT_EQ(reshape(counting({}), {1, 1}).shape(), (Shape{1, 1}));
}

TEST_P(ShapeTest, ReshapeOfViews) {
  const Tensor x = counting({4, 6, 10});
  struct Case {
    Tensor view;
    Shape shape;
    bool shares;
  };
  const Tensor broadcast = expand(counting({4, 1}), {4, 3});
  const Case cases[] = {
      {transpose(x, 0, 1), {6, 40}, false},
      {transpose(x, 0, 1), {6, 2, 2, 10}, true},
      {transpose(x, 0, 1), {2, 3, 4, 5, 2}, true},
      {slice(x, 1, 1, 5), {4, 40}, true},
      {slice(x, 1, 1, 5), {160}, false},
      {slice(x, 2, 0, 10, 2), {120}, true},
      {slice(x, 0, 0, 4, 2), {2, 60}, true},
      {slice(x, 0, 0, 4, 2), {2, 1, 4, 15, 1}, true},
      {slice(x, 0, 0, 4, 2), {120}, false},
      {broadcast, {2, 2, 3}, true},
      {broadcast, {12}, false},
      {unsqueeze(transpose(x, 1, 2), 1), {4, 10, 3, 2}, true},
      {slice(x, 1, 2, 3), {40}, false},
      {slice(x, 1, 2, 3), {4, 10}, true},
      {slice(slice(x, 1, 2, 3), 2, 3, 4), {4}, true},
  };
  for (const Case& c : cases) {
    const Tensor y = reshape(c.view, c.shape);
    EXPECT_EQ(y.shape(), c.shape);
    EXPECT_EQ(y.to_vector<double>(), c.view.to_vector<double>()) << c.shape.str();
    EXPECT_EQ(y.storage() == c.view.storage(), c.shares) << c.shape.str();
  }
}

TEST_P(ShapeTest, ReshapeOfNothing) {
  EXPECT_EQ(reshape(counting({0, 3}), {3, 0, 5}).shape(), (Shape{3, 0, 5}));
  EXPECT_EQ(reshape(counting({0, 3}), {-1, 3}).shape(), (Shape{0, 3}));
  EXPECT_EQ(reshape(transpose(counting({0, 3}), 0, 1), {0}).shape(), (Shape{0}));
}

TEST_P(ShapeTest, ReshapeErrors) {
  const Tensor x = counting({2, 3});
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(x, {4}); }, "x is [2, 3] with 6 elements, which do not fill shape [4]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(x, {4, -1}); }, "do not fill shape [4, -1]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(x, {-1, -1}); }, "at most one -1"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(x, {-2, 3}); }, "at least 0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(counting({0, 3}), {-1, 0}); }, "do not fill shape [-1, 0]"));
  // Whose products are 4, 0 and 4 in 64 bits.
  constexpr std::int64_t k32 = std::int64_t{1} << 32, k62 = std::int64_t{1} << 62;
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(counting({2, 2}), {k62 + 1, 4}); }, "do not fill shape"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(counting({0}), {k32, k32}); }, "do not fill shape"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { reshape(counting({4}), {-1, k62 + 1, 4}); }, "do not fill shape"));
}

TEST_P(ShapeTest, Flatten) {
  const Tensor x = counting({2, 3, 4, 5});
  EXPECT_EQ(flatten(x).shape(), (Shape{120}));
  EXPECT_EQ(flatten(x, 1, 2).shape(), (Shape{2, 12, 5}));
  EXPECT_EQ(flatten(x, -2).shape(), (Shape{2, 3, 20}));
  EXPECT_EQ(flatten(x, 1, 1).shape(), (Shape{2, 3, 4, 5}));
  EXPECT_EQ(flatten(counting({})).shape(), (Shape{1}));
  EXPECT_EQ(flatten(x, 1, 2).to_vector<double>(), x.to_vector<double>());
  EXPECT_TRUE(throws_with<ShapeError>([&] { flatten(x, 2, 1); }, "flatten: start_dim 2 is behind end_dim 1"));
  EXPECT_TRUE(throws_with<IndexError>([&] { flatten(x, 0, 4); }, "flatten"));
}

TEST_P(ShapeTest, PermuteAndTranspose) {
  const Shape shape{2, 3, 4};
  const Tensor x = counting(shape);
  const Tensor p = permute(x, {2, 0, -2});
  EXPECT_EQ(p.storage(), x.storage());
  EXPECT_TRUE(maps(p, {4, 2, 3}, shape, [](const Index& i) { return Index{i[1], i[2], i[0]}; }));
  EXPECT_TRUE(maps(transpose(x, 0, -1), {4, 3, 2}, shape, [](const Index& i) { return Index{i[2], i[1], i[0]}; }));
  EXPECT_TRUE(maps(transpose(p, 1, 2), {4, 3, 2}, shape, [](const Index& i) { return Index{i[2], i[1], i[0]}; }));
  EXPECT_EQ(permute(counting({}), {}).item<double>(), 0);
  EXPECT_TRUE(throws_with<ShapeError>([&] { permute(x, {0, 1}); }, "every dimension of x [2, 3, 4] once"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { permute(x, {0, 1, -2}); }, "[0, 1, -2]"));
  EXPECT_TRUE(throws_with<IndexError>([&] { permute(x, {0, 1, 3}); }, "permute"));
  EXPECT_TRUE(throws_with<IndexError>([&] { transpose(x, 0, 3); }, "transpose"));
}

TEST_P(ShapeTest, UnsqueezeAndSqueeze) {
  const Tensor x = transpose(counting({2, 3}), 0, 1);
  EXPECT_EQ(unsqueeze(x, 0).shape(), (Shape{1, 3, 2}));
  EXPECT_EQ(unsqueeze(x, -1).shape(), (Shape{3, 2, 1}));
  EXPECT_EQ(unsqueeze(x, 1).to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(squeeze(unsqueeze(x, 1), 1).shape(), (Shape{3, 2}));
  EXPECT_EQ(squeeze(unsqueeze(x, 1), -2).to_vector<double>(), x.to_vector<double>());
  EXPECT_TRUE(squeeze(x, 0).is_same(x));
  EXPECT_TRUE(throws_with<IndexError>([&] { unsqueeze(x, 3); }, "unsqueeze"));
  EXPECT_TRUE(throws_with<IndexError>([&] { squeeze(x, 2); }, "squeeze"));
}

TEST_P(ShapeTest, Expand) {
  const Tensor x = counting({3, 1});
  const Tensor y = expand(x, {2, -1, 4});
  EXPECT_EQ(y.storage(), x.storage());
  EXPECT_EQ(y.strides(), (Shape{0, 1, 0}));
  EXPECT_TRUE(maps(y, {2, 3, 4}, {3, 1}, [](const Index& i) { return Index{i[1], 0}; }));
  EXPECT_EQ(expand(x, {3, 0}).shape(), (Shape{3, 0}));
  EXPECT_EQ(expand(counting({}), {2, 2}).to_vector<double>(), (std::vector<double>{0, 0, 0, 0}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { expand(x, {2, 4}); }, "x [3, 1] does not broadcast to shape [2, 4]"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { expand(x, {-1, 3, 1}); }, "does not broadcast"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { expand(x, {3}); }, "fewer dimensions"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { expand(x, {std::int64_t{1} << 62, 3, 2}); }, "too many elements"));
}

// Python's slices, enumerated for every combination of bounds near the ends of a dimension.
TEST_P(ShapeTest, SliceFollowsPython) {
  const Tensor x = counting({2, 5});
  using Bound = std::optional<std::int64_t>;
  std::vector<Bound> bounds{std::nullopt, INT64_MIN, INT64_MAX};
  for (std::int64_t i = -7; i <= 7; ++i) bounds.push_back(i);
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{7}, INT64_MAX, std::int64_t{-1},
                                  std::int64_t{-2}, std::int64_t{-9}, INT64_MIN}) {
    for (const Bound start : bounds) {
      for (const Bound stop : bounds) {
        // The definition: absent bounds are beyond the ends, negative ones count from the end, then walk.
        const auto clip = [&](Bound b, std::int64_t absent) {
          if (!b) return absent;
          const std::int64_t i = *b < 0 ? *b + 5 : *b;
          return step > 0 ? std::max<std::int64_t>(0, std::min<std::int64_t>(i, 5))
                          : std::max<std::int64_t>(-1, std::min<std::int64_t>(i, 4));
        };
        const std::int64_t first = clip(start, step > 0 ? 0 : 4), last = clip(stop, step > 0 ? 5 : -1);
        std::vector<double> expected;
        for (std::int64_t i = first; step > 0 ? i < last : i > last;) {
          expected.push_back(static_cast<double>(i));
          if (step > 6 || step < -6) break;
          i += step;
        }
        const Tensor y = slice(x, 1, start, stop, step);
        ASSERT_EQ(y.shape(), (Shape{2, static_cast<std::int64_t>(expected.size())}));
        ASSERT_EQ(select(y, 0, 0).to_vector<double>(), expected);
        for (double& i : expected) i += 5;
        ASSERT_EQ(select(y, 0, 1).to_vector<double>(), expected);
      }
    }
  }
}

TEST_P(ShapeTest, SliceIsAView) {
  const Shape shape{4, 6, 5};
  const Tensor x = counting(shape), y = slice(slice(transpose(x, 0, 1), 0, 1, std::nullopt, 2), 1, 1, 3);
  EXPECT_EQ(y.storage(), x.storage());
  EXPECT_TRUE(maps(y, {3, 2, 5}, shape, [](const Index& i) { return Index{i[1] + 1, 2 * i[0] + 1, i[2]}; }));
  const Tensor back = slice(y, -1, std::nullopt, std::nullopt, -2);
  EXPECT_NE(back.storage(), x.storage());
  EXPECT_TRUE(maps(back, {3, 2, 3}, shape, [](const Index& i) { return Index{i[1] + 1, 2 * i[0] + 1, 4 - 2 * i[2]}; }));
  EXPECT_EQ(slice(x, 1, 6, 6).shape(), (Shape{4, 0, 5}));
  EXPECT_EQ(slice(counting({0}), 0, std::nullopt, std::nullopt, -1).numel(), 0);
  EXPECT_TRUE(throws_with<ValueError>([&] { slice(x, 0, 0, 1, 0); }, "step is 0"));
  EXPECT_TRUE(throws_with<IndexError>([&] { slice(x, 3, 0, 1); }, "slice"));
}

TEST_P(ShapeTest, Select) {
  const Tensor x = counting({2, 3, 4});
  EXPECT_TRUE(maps(select(x, 1, -1), {2, 4}, {2, 3, 4}, [](const Index& i) { return Index{i[0], 2, i[1]}; }));
  EXPECT_EQ(select(x, 0, 1).storage(), x.storage());
  EXPECT_EQ(select(counting({3}), 0, 2).item<double>(), 2);
  EXPECT_TRUE(
      throws_with<IndexError>([&] { select(x, 1, 3); }, "select: index 3 is out of range for dimension 1 of x [2, 3, 4]"));
  EXPECT_TRUE(throws_with<IndexError>([&] { select(x, 1, -4); }, "index -4"));
}

TEST_P(ShapeTest, ViewsSeeInPlaceChanges) {
  const Tensor x = counting({3, 4});
  const Tensor y = slice(transpose(x, 0, 1), 0, 1, 3);
  fill_(select(y, 1, 2), -1);
  EXPECT_EQ(x.to_vector<double>(), (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8, -1, -1, 11}));
}

TEST_P(ShapeTest, InPlaceChangeOfAViewIsSeenByTheTape) {
  const Tensor x = leaf({4});
  const Tensor y = x * 2.0, view = slice(y.detach(), 0, 1, 3);
  const Tensor loss = sum(y * y);
  zero_(view);
  EXPECT_TRUE(throws_with<AutogradError>([&] { loss.backward(); }, "changed in place"));
}

TEST_P(ShapeTest, Cat) {
  const Tensor a = counting({2, 3}), b = transpose(counting({2, 2}), 0, 1), empty_part = counting({2, 0});
  EXPECT_EQ(cat({a, empty_part, b}, 1).to_vector<double>(), (std::vector<double>{0, 1, 2, 0, 2, 3, 4, 5, 1, 3}));
  EXPECT_EQ(cat({b, slice(a, 1, 1, 3)}, 0).to_vector<double>(), (std::vector<double>{0, 2, 1, 3, 1, 2, 4, 5}));
  EXPECT_EQ(cat({b, b}, -1).shape(), (Shape{2, 4}));
  EXPECT_EQ(cat({a}, 0).to_vector<double>(), a.to_vector<double>());
  EXPECT_NE(cat({a}, 0).storage(), a.storage());
  EXPECT_EQ(cat({empty_part, empty_part}, 1).shape(), (Shape{2, 0}));
  const Tensor promoted = cat({counting({2}, DType::int64), counting({1}, DType::bfloat16)});
  EXPECT_EQ(promoted.dtype(), DType::bfloat16);
  EXPECT_EQ(promoted.to_vector<double>(), (std::vector<double>{0, 1, 0}));
}

TEST_P(ShapeTest, CatErrors) {
  const Tensor a = counting({2, 3});
  EXPECT_TRUE(throws_with<ValueError>([&] { cat({}); }, "cat: tensors is empty"));
  EXPECT_TRUE(throws_with<ValueError>([&] { cat({a, Tensor()}); }, "tensors[1] is undefined"));
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { cat({a, counting({2, 2})}, 0); }, "tensors[1] is [2, 2]: sizes differ outside dimension 0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { cat({a, counting({2})}, 0); }, "tensors[1] is [2]"));
  EXPECT_TRUE(throws_with<IndexError>([&] { cat({a}, 2); }, "cat"));
  EXPECT_TRUE(throws_with<IndexError>([&] { cat({counting({})}, 0); }, "cat"));
  if (device().is_cuda()) {
    EXPECT_TRUE(throws_with<DeviceError>([&] { cat({a, to_data(a, kCPU)}); }, "tensors[1] on cpu"));
  }
}

TEST_P(ShapeTest, Stack) {
  const Tensor a = counting({2, 3}), b = transpose(counting({3, 2}), 0, 1);
  EXPECT_EQ(stack({a, b}).to_vector<double>(), (std::vector<double>{0, 1, 2, 3, 4, 5, 0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(stack({a, b}, -1).to_vector<double>(), (std::vector<double>{0, 0, 1, 2, 2, 4, 3, 1, 4, 3, 5, 5}));
  EXPECT_EQ(stack({a, b, a}, 1).shape(), (Shape{2, 3, 3}));
  EXPECT_EQ(stack({counting({}), counting({})}).shape(), (Shape{2}));
  EXPECT_TRUE(
      throws_with<ShapeError>([&] { stack({a, counting({3, 2})}); }, "stack: tensors[0] is [2, 3] and tensors[1] is [3, 2]"));
  EXPECT_TRUE(throws_with<ValueError>([&] { stack({}); }, "stack: tensors is empty"));
  EXPECT_TRUE(throws_with<IndexError>([&] { stack({a}, 3); }, "stack"));
}

TEST_P(ShapeTest, Split) {
  const Tensor x = counting({2, 5});
  const Tensors parts = split(x, 2, 1);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[0].storage(), x.storage());
  EXPECT_EQ(parts[1].to_vector<double>(), (std::vector<double>{2, 3, 7, 8}));
  EXPECT_EQ(parts[2].to_vector<double>(), (std::vector<double>{4, 9}));
  const Tensors sized = split(transpose(x, 0, 1), {1, 0, 4});
  ASSERT_EQ(sized.size(), 3u);
  EXPECT_EQ(sized[1].shape(), (Shape{0, 2}));
  EXPECT_EQ(sized[2].to_vector<double>(), (std::vector<double>{1, 6, 2, 7, 3, 8, 4, 9}));
  ASSERT_EQ(split(counting({0, 2}), 3).size(), 1u);
  EXPECT_EQ(split(counting({0, 2}), 3)[0].shape(), (Shape{0, 2}));
  EXPECT_TRUE(throws_with<ShapeError>([&] { split(x, {2, 2}, 1); }, "sizes [2, 2] do not add up to 5"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { split(x, {6, -1}, 1); }, "sizes [6, -1]"));
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(throws_with<ShapeError>([&] { split(x, {kLargest, kLargest, 7}, 1); }, "do not add up to 5"));
  EXPECT_TRUE(throws_with<ValueError>([&] { split(x, 0, 1); }, "size is 0"));
}

TEST_P(ShapeTest, RepeatInterleave) {
  const Shape shape{2, 3, 4};
  const Tensor x = counting(shape);
  EXPECT_TRUE(maps(repeat_interleave(x, 3, 1), {2, 9, 4}, shape, [](const Index& i) { return Index{i[0], i[1] / 3, i[2]}; }));
  EXPECT_TRUE(maps(repeat_interleave(transpose(x, 0, 2), 2, -1), {4, 3, 4}, shape,
                   [](const Index& i) { return Index{i[2] / 2, i[1], i[0]}; }));
  EXPECT_EQ(repeat_interleave(x, 0, 0).shape(), (Shape{0, 3, 4}));
  const Tensor eight = counting({1, 2, 1, 1, 1, 1, 1, 2});
  EXPECT_EQ(repeat_interleave(eight, 2, 1).to_vector<double>(), (std::vector<double>{0, 1, 0, 1, 2, 3, 2, 3}));
  EXPECT_TRUE(throws_with<ValueError>([&] { repeat_interleave(x, -1, 0); }, "repeats is -1"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { repeat_interleave(x, std::int64_t{1} << 62, 0); }, "are too many"));
}

TEST_P(ShapeTest, Flip) {
  const Shape shape{3, 4, 5};
  const Tensor x = counting(shape);
  EXPECT_TRUE(maps(flip(x, {0, -1}), shape, shape, [](const Index& i) { return Index{2 - i[0], i[1], 4 - i[2]}; }));
  EXPECT_TRUE(maps(flip(transpose(x, 0, 1), {0, 1, 2}), {4, 3, 5}, shape,
                   [](const Index& i) { return Index{2 - i[1], 3 - i[0], 4 - i[2]}; }));
  EXPECT_TRUE(
      maps(flip(slice(x, 2, 1, 5, 2), {2}), {3, 4, 2}, shape, [](const Index& i) { return Index{i[0], i[1], 3 - 2 * i[2]}; }));
  EXPECT_EQ(flip(x, {}).to_vector<double>(), x.to_vector<double>());
  EXPECT_EQ(flip(counting({0, 2}), {0}).shape(), (Shape{0, 2}));
  EXPECT_TRUE(throws_with<ValueError>([&] { flip(x, {1, -2}); }, "dimension 1 appears twice"));
}

TEST_P(ShapeTest, Contiguous) {
  const Tensor x = counting({2, 3});
  EXPECT_TRUE(contiguous(x).is_same(x));
  const Tensor y = contiguous(transpose(x, 0, 1));
  EXPECT_TRUE(y.is_contiguous());
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{0, 3, 1, 4, 2, 5}));
}

TEST_P(ShapeTest, EveryDType) {
  for (const DType dtype : kAll) {
    const Tensor x = to_data(counting({2, 3}, DType::uint8), dtype);
    const auto copy = [&](const Tensor& y) { return to_data(y, DType::float64).to_vector<double>(); };
    const auto values = copy(x);
    for (const Tensor& y : {cat({x, x}), stack({x, x}), repeat_interleave(x, 2, 1), flip(x, {1}), contiguous(transpose(x, 0, 1)),
                            reshape(transpose(x, 0, 1), {6})})
      EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(copy(flip(x, {0, 1})), std::vector<double>(values.rbegin(), values.rend()));
    EXPECT_EQ(copy(select(stack({x, x}, 1), 1, 1)), values);
    EXPECT_EQ(copy(slice(repeat_interleave(x, 2, 1), 1, 0, std::nullopt, 2)), values);
  }
}

TEST_P(ShapeTest, LargeOddSizes) {
  const Shape shape{3, 517, 129};
  const Tensor x = counting(shape);
  EXPECT_TRUE(
      maps(contiguous(permute(x, {2, 0, 1})), {129, 3, 517}, shape, [](const Index& i) { return Index{i[1], i[2], i[0]}; }));
  EXPECT_TRUE(maps(flip(x, {1}), shape, shape, [](const Index& i) { return Index{i[0], 516 - i[1], i[2]}; }));
  EXPECT_TRUE(maps(cat({slice(x, 1, 200, 517), slice(x, 1, 0, 200)}, 1), shape, shape,
                   [](const Index& i) { return Index{i[0], (i[1] + 200) % 517, i[2]}; }));
}

TEST_P(ShapeTest, GradientsOfViews) {
  const Tensor x = leaf({2, 3, 4});
  // Squared, so that second derivatives are not all zero.
  const auto check = [&](const std::function<Tensor(const Tensor&)>& f) {
    check_gradients([&](const Tensors& in) { return Tensors{square(f(in[0]))}; }, {x});
  };
  check([](const Tensor& t) { return reshape(t, {4, 6}); });
  check([](const Tensor& t) { return reshape(transpose(t, 0, 2), {4, -1}); });
  check([](const Tensor& t) { return flatten(t, 1); });
  check([](const Tensor& t) { return permute(t, {1, 2, 0}); });
  check([](const Tensor& t) { return transpose(t, 0, -1); });
  check([](const Tensor& t) { return unsqueeze(t, 1); });
  check([](const Tensor& t) { return squeeze(slice(t, 0, 1, 2), 0); });
  check([](const Tensor& t) { return expand(slice(t, 1, 0, 1), {5, 2, 3, 4}); });
  check([](const Tensor& t) { return slice(t, 1, 0, 3, 2); });
  check([](const Tensor& t) { return slice(t, 2, 3, 0, -2); });
  check([](const Tensor& t) { return slice(t, 2, 2, 2); });
  check([](const Tensor& t) { return select(t, 1, 1); });
  check([](const Tensor& t) { return slice(select(transpose(t, 0, 2), 1, -1), 0, 1, 4, 2); });
}

TEST_P(ShapeTest, GradientsOfCopies) {
  const Tensor x = leaf({2, 3, 2}), y = leaf({2, 1, 2});
  check_gradients([](const Tensors& in) { return Tensors{square(cat({in[0], in[1], in[0]}, 1))}; }, {x, y});
  check_gradients([](const Tensors& in) { return Tensors{square(stack({in[0], square(in[0])}, 1))}; }, {x});
  check_gradients([](const Tensors& in) { return Tensors{square(repeat_interleave(transpose(in[0], 0, 1), 2, 1))}; }, {x});
  check_gradients([](const Tensors& in) { return Tensors{square(flip(in[0], {0, 2}))}; }, {x});
  check_gradients([](const Tensors& in) { return Tensors{square(contiguous(transpose(in[0], 0, 1)))}; }, {x});
  check_gradients(
      [](const Tensors& in) {
        const Tensors parts = split(in[0], {1, 2}, 1);
        return Tensors{square(parts[0]), parts[0] * parts[1]};
      },
      {x});
  check_gradients([](const Tensors& in) { return Tensors{square(split(in[0], 1, 1)[2])}; }, {x});  // two parts unused
}

TEST_P(ShapeTest, CatGivesEveryInputItsDType) {
  Tensor a = to_data(leaf({2}).detach(), DType::float32).set_requires_grad(), b = leaf({3}), c = counting({1}, DType::int64);
  const Tensor y = cat({a, b, c});
  EXPECT_EQ(y.dtype(), DType::float64);
  y.backward(counting({6}));
  EXPECT_EQ(a.grad().dtype(), DType::float32);
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{0, 1}));
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{2, 3, 4}));
}

TEST_P(ShapeTest, ViewsOfLeavesReachTheLeaf) {
  const Tensor x = leaf({3, 4});
  sum(slice(x, 0, 1, 3) * 2.0).backward();
  sum(select(x, 1, 0)).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{1, 0, 0, 0, 3, 2, 2, 2, 3, 2, 2, 2}));
}

}  // namespace
}  // namespace glade
