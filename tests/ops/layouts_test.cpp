// Elementwise loops and copies over tensors of any layout in memory: transposed, with gaps, broadcast, reversed; and the layouts
// of results.
#include <algorithm>
#include <numeric>

#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class Layouts : public DeviceTest {};
GLADE_DEVICE_TESTS(Layouts);

/// Integers that every dtype holds, in some order of their own.
Tensor numbers(const Shape& shape, DType dtype, Device device) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i * 7 % 101);
  return to_data(to_data(Tensor::from_vector(values, shape), dtype), device);
}

/// What a view shows, element by element, from a copy of its whole memory.
std::vector<double> shown(const Tensor& base, const Tensor& view) {
  const std::vector<double> memory = to_data(base, DType::float64).to_vector<double>();
  std::vector<double> values;
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    std::int64_t rest = i, at = view.offset();
    for (int d = view.ndim() - 1; d >= 0; --d) {
      at += rest % view.shape()[d] * view.strides()[d];
      rest /= view.shape()[d];
    }
    values.push_back(memory[static_cast<std::size_t>(at)]);
  }
  return values;
}

std::vector<double> values_of(const Tensor& x) { return to_data(x, DType::float64).to_vector<double>(); }

// Sizes below, at and above those of tiles and of vectors.
const Shape kShapes[] = {{131, 67}, {64, 64}, {3, 200}, {200, 3}, {17, 5, 33}, {2, 70, 3, 66}, {65, 1, 130}};

TEST_P(Layouts, CopiesOfEveryOrderOfDimensions) {
  for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float32, DType::int64})
    for (const Shape& shape : kShapes) {
      const Tensor x = numbers(shape, dtype, device());
      std::vector<std::int64_t> order(static_cast<std::size_t>(shape.ndim()));
      std::iota(order.begin(), order.end(), 0);
      do {
        const Tensor view = permute(x, order);
        const std::vector<double> expected = shown(x, view);
        EXPECT_EQ(values_of(contiguous(view)), expected) << shape.str() << dtype_name(dtype);
        Tensor there = empty(shape, x.options());  // the same elements, written across
        fill_(there, 1);
        copy_(permute(there, order), contiguous(view));
        EXPECT_EQ(values_of(there), values_of(x)) << shape.str() << dtype_name(dtype);
      } while (std::next_permutation(order.begin(), order.end()));
    }
}

TEST_P(Layouts, OperandsOfDifferentLayouts) {
  using Case = std::pair<DType, std::int64_t>;
  for (const auto& [dtype, n] : {Case{DType::float32, 30}, Case{DType::float32, 32}, Case{DType::float64, 32},
                                 Case{DType::bfloat16, 30}, Case{DType::bfloat16, 32}, Case{DType::int32, 32}}) {
    const Tensor x = numbers({70, n}, dtype, device()), across = numbers({n, 70}, dtype, device());
    const Tensor wide = numbers({70, 2 * n + 8}, dtype, device());
    const Tensor row = numbers({n}, dtype, device()), column = numbers({70, 1}, dtype, device());
    const std::pair<Tensor, Tensor> views[] = {{x, x},
                                               {across, transpose(across, 0, 1)},
                                               {wide, slice(wide, 1, 1, 2 * n + 1, 2)},
                                               {wide, slice(wide, 1, 1, n + 1)},  // rows that do not begin at whole vectors
                                               {wide, slice(wide, 1, 8, n + 8)},
                                               {row, expand(row, {70, n})},
                                               {column, expand(column, {70, n})}};
    for (const auto& [base, first] : views)
      for (const auto& [other_base, second] : views) {
        const std::vector<double> a = shown(base, first), b = shown(other_base, second);
        const std::vector<double> largest = values_of(maximum(first, second));
        const std::vector<double> chosen = values_of(where(lt(first, second), first, second + 1));
        ASSERT_EQ(largest.size(), a.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
          ASSERT_EQ(largest[i], std::max(a[i], b[i])) << dtype_name(dtype) << ' ' << i;
          ASSERT_EQ(chosen[i], a[i] < b[i] ? a[i] : b[i] + 1) << dtype_name(dtype) << ' ' << i;
        }
      }
  }
}

// Around the numbers of elements that threads and blocks take, from every kind of start.
TEST_P(Layouts, VectorsAndWhatIsLeftOfThem) {
  for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float32, DType::float64})
    for (const std::int64_t n : {1, 3, 15, 16, 17, 1023, 1025, 2047, 2048, 2049, 4097, 8191, 8193, 20001})
      for (const std::int64_t start : {0, 1, 4, 16}) {
        const Tensor base = numbers({n + 16}, dtype, device()), mask = eq(numbers({n + 16}, DType::int64, device()) % 2, 0);
        const Tensor x = slice(base, 0, start, start + n), y = slice(base, 0, 16 - start, 16 - start + n);
        const Tensor holds = slice(mask, 0, start, start + n);
        const std::vector<double> a = values_of(x), b = values_of(y), even = values_of(holds);
        const std::vector<double> least = values_of(minimum(x, y)), below = values_of(lt(x, y));
        const std::vector<double> chosen = values_of(where(holds, x, y)), wide = values_of(to(x, DType::int64));
        const std::vector<double> tens = values_of(maximum(x, full({}, 10, x.options()))), turned = values_of(flip(x, {0}));
        for (std::size_t i = 0; i < a.size(); ++i) {
          ASSERT_EQ(least[i], std::min(a[i], b[i])) << dtype_name(dtype) << ' ' << n << ' ' << start << ' ' << i;
          ASSERT_EQ(below[i], a[i] < b[i]) << dtype_name(dtype) << ' ' << n << ' ' << start << ' ' << i;
          ASSERT_EQ(chosen[i], even[i] != 0 ? a[i] : b[i]) << dtype_name(dtype) << ' ' << n << ' ' << start << ' ' << i;
          ASSERT_EQ(wide[i], a[i]) << dtype_name(dtype) << ' ' << n << ' ' << start << ' ' << i;
          ASSERT_EQ(tens[i], std::max(a[i], 10.0)) << dtype_name(dtype) << ' ' << n << ' ' << start << ' ' << i;
          ASSERT_EQ(turned[i], a[a.size() - 1 - i]) << dtype_name(dtype) << ' ' << n << ' ' << start << ' ' << i;
        }
      }
}

TEST_P(Layouts, ReversedAndRepeatedElements) {
  for (const std::int64_t n : {1, 5, 255, 256, 257, 511, 513, 1023, 1025, 1500, 4100, 5000}) {
    const Tensor x = numbers({3, n}, DType::float32, device()), column = numbers({3, 1}, DType::float32, device());
    const std::vector<double> values = values_of(x), factors = values_of(column);
    const std::vector<double> flipped = values_of(flip(x, {1})), products = values_of(x * column);
    for (std::int64_t i = 0; i < 3 * n; ++i) {
      const auto at = static_cast<std::size_t>(i), back = static_cast<std::size_t>(i / n * n + n - 1 - i % n);
      ASSERT_EQ(flipped[at], values[back]) << n;
      ASSERT_EQ(products[at], values[at] * factors[static_cast<std::size_t>(i / n)]) << n;
    }
  }
}

// So many elements that a GPU brings an operand to the result's order first.
TEST_P(Layouts, LargeOperandsThatLieAcross) {
  const auto same = [](const Tensor& found, const Tensor& expected, DType dtype) {
    ASSERT_EQ(values_of(found), values_of(expected)) << found.shape().str() << dtype_name(dtype);
  };
  for (const DType dtype : {DType::uint8, DType::bfloat16, DType::float32, DType::int64}) {
    const Tensor x = numbers({1031, 1025}, dtype, device()), y = transpose(numbers({1025, 1031}, dtype, device()), 0, 1);
    const Tensor x_here = to_data(x, kCPU), y_here = to_data(y, kCPU);
    same(maximum(x, y), maximum(x_here, y_here), dtype);
    same(where(gt(x, y), y, x), where(gt(x_here, y_here), y_here, x_here), dtype);
    same(where(eq(y, 3), x, zeros({}, x.options())), where(eq(y_here, 3), x_here, zeros({}, x_here.options())), dtype);
    const Tensor cube = numbers({64, 130, 129}, dtype, device()),
                 other = permute(numbers({130, 129, 64}, dtype, device()), {2, 0, 1});
    same(maximum(cube, other), maximum(to_data(cube, kCPU), to_data(other, kCPU)), dtype);
    const Tensor row = numbers({129}, dtype, device()), part = slice(other, 1, 1, 130);
    same(maximum(slice(cube, 1, 0, 129), part), maximum(to_data(slice(cube, 1, 0, 129), kCPU), to_data(part, kCPU)), dtype);
    same(maximum(other, row), maximum(to_data(other, kCPU), to_data(row, kCPU)), dtype);
    const Tensor target = clone(x);
    if (dtype == DType::float32) {
      add_(target, y);
      same(target, x_here + y_here, dtype);
      const Tensor gaps = transpose(slice(numbers({1025, 1040}, dtype, device()), 1, 0, 1031), 0, 1);
      add_(target, gaps, -1);
      same(target, x_here + y_here - to_data(gaps, kCPU), dtype);
    }
  }
}

TEST_P(Layouts, ResultsLieAsTheirOperandDoes) {
  const Tensor x = numbers({6, 5, 4}, DType::float32, device()), view = permute(x, {2, 0, 1});
  EXPECT_EQ(exp(view).strides(), view.strides());
  EXPECT_EQ((view + 1).strides(), view.strides());
  EXPECT_EQ((view * view).strides(), view.strides());
  EXPECT_EQ((view * numbers({4, 6, 5}, DType::float32, device())).strides(), view.strides());
  EXPECT_EQ(gt(view, numbers({5}, DType::float32, device())).strides(), view.strides());
  EXPECT_EQ(clamp(view, 1, 2).strides(), view.strides());
  EXPECT_TRUE((numbers({4, 6, 5}, DType::float32, device()) * view).is_contiguous());
  EXPECT_TRUE(exp(slice(x, 2, 0, 2)).is_contiguous());                                 // gaps are not kept
  EXPECT_TRUE((expand(select(x, 2, 0), {3, 6, 5}) + 1).is_contiguous());               // nor what is repeated
  EXPECT_TRUE((x + numbers({2, 6, 5, 4}, DType::float32, device())).is_contiguous());  // nor what is not of the result's shape
  EXPECT_EQ(values_of(view * 2), values_of(contiguous(view) * 2));
}

TEST_P(Layouts, InPlaceAcross) {
  const Tensor x = numbers({130, 70}, DType::float32, device()), y = numbers({70, 130}, DType::float32, device());
  const std::vector<double> a = values_of(x), b = values_of(y);
  add_(transpose(x, 0, 1), y);
  const std::vector<double> sums = values_of(x);
  for (std::size_t i = 0; i < 130; ++i)
    for (std::size_t j = 0; j < 70; ++j) ASSERT_EQ(sums[i * 70 + j], a[i * 70 + j] + b[j * 130 + i]);
}

TEST_P(Layouts, NonzeroOfEverySizeAndDensity) {
  std::uint32_t state = 1;
  for (const Shape& shape :
       {Shape{}, Shape{1}, Shape{7}, Shape{40000}, Shape{300, 110}, Shape{5, 1, 33}, Shape{40, 3, 171}, Shape{4, 0}})
    for (const std::uint32_t of_thousand : {0u, 3u, 500u, 1000u}) {
      std::vector<std::int64_t> flags(static_cast<std::size_t>(shape.numel())), expected;
      for (std::size_t i = 0; i < flags.size(); ++i) {
        state = state * 1664525 + 1013904223;
        flags[i] = (state >> 8) % 1000 < of_thousand;
        if (flags[i] == 0) continue;
        for (int d = 0; d < shape.ndim(); ++d) {
          std::int64_t inner = 1;
          for (int e = d + 1; e < shape.ndim(); ++e) inner *= shape[e];
          expected.push_back(static_cast<std::int64_t>(i) / inner % shape[d]);
        }
      }
      const Tensor positions = nonzero(to_data(Tensor::from_vector(flags, shape, device()), DType::boolean));
      EXPECT_EQ(positions.ndim(), 2);
      EXPECT_EQ(positions.size(1), shape.ndim());
      EXPECT_EQ(positions.size(0), std::count(flags.begin(), flags.end(), 1));
      EXPECT_EQ(positions.to_vector<std::int64_t>(), expected) << shape.str();
    }
}

}  // namespace
}  // namespace glade
