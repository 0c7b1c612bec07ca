#include <functional>

#include <glade/autograd/gradcheck.h>
#include <glade/ops/composite/composite.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/index/index.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/random/random.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;
using Integers = std::vector<std::int64_t>;
using Values = std::vector<double>;

class Composite : public DeviceTest {
 protected:
  Tensor of(const Values& values, const Shape& shape) const { return Tensor::from_vector(values, shape, device()); }
  Tensor of(const Values& values) const { return Tensor::from_vector(values, device()); }
};
GLADE_DEVICE_TESTS(Composite);

TEST_P(Composite, LogicTakesNumbersForTruth) {
  const Tensor a = of({0, 0, 2, NAN}), b = to_data(of({0, -3, 0, 5}), DType::int64);
  EXPECT_EQ(logical_and(a, b).to_vector<bool>(), (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(logical_or(a, b).to_vector<bool>(), (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(logical_xor(a, b).to_vector<bool>(), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(logical_not(a).to_vector<bool>(), (std::vector<bool>{true, true, false, false}));
  EXPECT_EQ(logical_not(a).dtype(), DType::boolean);
  EXPECT_EQ(count_nonzero(a).item<std::int64_t>(), 2);
  EXPECT_EQ(count_nonzero(of({1, 0, 3, 0, 0, 6}, {2, 3}), {1}).to_vector<std::int64_t>(), (Integers{2, 1}));
}

TEST_P(Composite, MasksSelect) {
  const Tensor x = of({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(masked_select(x, gt(x, 2)).to_vector<double>(), (Values{3, 4, 5, 6}));
  EXPECT_EQ(masked_select(x, gt(of({0, 1, 0}), 0)).to_vector<double>(), (Values{2, 5}));
  EXPECT_EQ(masked_select(of({7, 8}, {2, 1}), gt(x, 4)).to_vector<double>(), (Values{8, 8}));
  EXPECT_EQ(masked_select(x, gt(x, 9)).shape(), Shape({0}));
  EXPECT_TRUE(throws_with<DTypeError>([&] { masked_select(x, x); }, "masked_select: mask is float64: expected bool"));
}

TEST_P(Composite, SumsAndProducts) {
  const Tensor a = random_tensor({3, 4}, device()), b = random_tensor({4, 5}, device()), x = random_tensor({5}, device());
  const Tensor p = select(a, 0, 0), q = select(a, 0, 1);
  EXPECT_TRUE(all_close(lerp(p, q, 0.25), p * 0.75 + q * 0.25));
  EXPECT_TRUE(all_close(lerp(p, q, square(p)), p + square(p) * (q - p)));
  const Tensor ends = Tensor::from_vector(std::vector<double>{0.1, 1e9, -3, 1e-9}, device());
  for (const double weight : {0.0, 0.2, 0.7, 1.0}) {
    const Tensor mixed = lerp(ends, q, weight);
    EXPECT_TRUE(all_close(mixed, lerp(ends, q, ones_like(q) * weight), 0, 0));
    EXPECT_TRUE(weight < 1 || all_close(mixed, q, 0, 0));
  }
  const Tensor whole = arange(0, 4, 1, {DType::int64, device()});
  for (const int weight : {0, 1, 3}) {
    EXPECT_EQ(lerp(whole, whole * 2, weight).dtype(), DType::int64);
    EXPECT_EQ(lerp(whole, whole * 2, weight).to_vector<std::int64_t>(), (whole * (1 + weight)).to_vector<std::int64_t>());
  }
  EXPECT_TRUE(all_close(addcmul(p, p, q, -2), p - p * q * 2));
  EXPECT_TRUE(all_close(addcdiv(p, p, q), p + p / q));
  EXPECT_TRUE(all_close(outer(p, x), unsqueeze(p, 1) * unsqueeze(x, 0)));
  EXPECT_TRUE(all_close(dot(p, q), sum(p * q)));
  EXPECT_TRUE(all_close(mv(a, q), sum(a * q, {1})));
  EXPECT_TRUE(all_close(addmm(x, a, b), x + matmul(a, b)));
  EXPECT_TRUE(all_close(addmm(x, a, b, 2, -0.5), x * 2 - matmul(a, b) * 0.5));
  EXPECT_TRUE(all_close(addmm(x / 0, a, b, 0), matmul(a, b)));
  const Tensor batch = stack({a, a * 2}), other = stack({b, b + 1});
  EXPECT_TRUE(all_close(baddbmm(x, batch, other, 1, 3), x + matmul(batch, other) * 3));
  EXPECT_TRUE(throws_with<ShapeError>([&] { outer(a, p); }, "outer: a is [3, 4]: expected 1 dimension(s)"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { mv(p, p); }, "mv: matrix is [4]: expected 2 dimension(s)"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { dot(p, x); }, "matmul"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { addmm(random_tensor({2, 3, 5}, device()), a, b); }, "does not broadcast"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { baddbmm(x, a, b); }, "baddbmm: a is [3, 4]"));
}

TEST_P(Composite, SixteenBitsRoundOnce) {
  using Operation = std::function<Tensor(const Tensors&)>;
  const Operation operations[] = {
      [](const Tensors& in) { return lerp(in[0], in[1], 0.3); },
      [](const Tensors& in) { return lerp(in[0], in[1], 0.8); },
      [](const Tensors& in) { return lerp(in[0], in[1], in[2]); },
      [](const Tensors& in) { return addcmul(in[0], in[1], in[2], 0.7); },
      [](const Tensors& in) { return addcdiv(in[0], in[1], in[2], 0.7); },
      [](const Tensors& in) { return addmm(in[0], in[1], in[2]); },
      [](const Tensors& in) { return addmm(in[0], in[1], in[2], 0.3, -0.7); },
      [](const Tensors& in) { return addmm(in[0], in[1], in[2], 0, 0.7); },
      [](const Tensors& in) {
        return squeeze(baddbmm(unsqueeze(in[0], 0), unsqueeze(in[1], 0), unsqueeze(in[2], 0), 0.3, 0.7), 0);
      },
  };
  for (const DType dtype : {DType::bfloat16, DType::float16})
    for (const Operation& operation : operations) {
      Tensors narrow, exact;
      for (int i = 0; i < 3; ++i) {
        narrow.push_back(random_tensor({20, 20}, device(), dtype, 2, 0.5).set_requires_grad());
        exact.push_back(to_data(narrow.back(), DType::float64).set_requires_grad());
      }
      const Tensor y = operation(narrow), expected = operation(exact);
      const double half_a_digit = dtype == DType::float16 ? 0x1p-11 : 0x1p-8, of_sums = 1e-4;  // of 20 products each in float32
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_TRUE(all_close(y, expected, half_a_digit, of_sums)) << &operation - operations;
      sum(y).backward();
      sum(expected).backward();
      for (std::size_t i = 0; i < 3; ++i) {
        if (!exact[i].grad().defined()) continue;
        EXPECT_EQ(narrow[i].grad().dtype(), dtype);
        EXPECT_LT(relative_error(narrow[i].grad(), exact[i].grad()), 8 * half_a_digit) << &operation - operations << " " << i;
      }
    }
}

TEST_P(Composite, Float16HoldsWhatOnlyPassesItsRange) {
  const auto all_of = [&](double value) { return full({2, 2}, value, {DType::float16, device()}); };
  const auto expect = [](const Tensor& y, double value) { EXPECT_EQ(y.to_vector<double>(), Values(4, value)); };
  expect(addcmul(all_of(-60000), all_of(300), all_of(300)), 30000);
  expect(addcmul(all_of(0), all_of(512), all_of(512), 0.125), 32768);
  expect(addcdiv(all_of(0), all_of(32768), all_of(0.5), 0.5), 32768);
  expect(lerp(all_of(-40000), all_of(40000), 0.25), -20000);
  expect(lerp(all_of(-40000), all_of(40000), all_of(0.75)), 20000);
  expect(addmm(all_of(-65504), all_of(240), all_of(256)), 57376);
  expect(addmm(all_of(0), all_of(256), all_of(256), 1, 0.25), 32768);
  expect(addmm(all_of(-40000), all_of(128), all_of(256), 2, 2), 51072);
}

TEST_P(Composite, Rearranges) {
  const Tensor x = random_tensor({2, 3, 4}, device());
  EXPECT_TRUE(all_close(tile(x, {2}), cat({x, x}, 2)));
  EXPECT_TRUE(all_close(tile(x, {2, 1, 1, 1}), stack({x, x})));
  EXPECT_TRUE(all_close(movedim(x, {0}, {-1}), permute(x, {1, 2, 0})));
  EXPECT_TRUE(all_close(movedim(x, {2, 0}, {0, 1}), permute(x, {2, 0, 1})));
  EXPECT_TRUE(movedim(x, {0}, {2}).storage() == x.storage());
  EXPECT_TRUE(throws_with<ValueError>([&] { movedim(x, {0, 0}, {1, 2}); }, "movedim: a dimension is given twice"));
  EXPECT_TRUE(throws_with<ValueError>([&] { movedim(x, {0, 1}, {1}); }, "2 dimensions to 1 places"));
  EXPECT_THROW(movedim(x, {3}, {0}), IndexError);
}

TEST_P(Composite, InPlaceByPosition) {
  const Tensor indices = to_data(of({0, 2}, {1, 2}), DType::int64), source = of({5, 6}, {1, 2});
  const Tensor x = of({1, 2, 3, 4, 5, 6}, {3, 2});
  const void* const address = x.raw_data();
  scatter_(x, 0, indices, source);
  EXPECT_EQ(x.to_vector<double>(), (Values{5, 2, 3, 4, 5, 6}));
  scatter_(x, 0, indices, 9);
  EXPECT_EQ(x.to_vector<double>(), (Values{9, 2, 3, 4, 5, 9}));
  scatter_add_(x, 0, indices, source);
  EXPECT_EQ(x.to_vector<double>(), (Values{14, 2, 3, 4, 5, 15}));
  index_add_(x, 0, to_data(of({1}), DType::int64), source);
  EXPECT_EQ(x.to_vector<double>(), (Values{14, 2, 8, 10, 5, 15}));
  index_add_(transpose(x, 0, 1), 1, to_data(of({1}), DType::int64), transpose(source, 0, 1));
  EXPECT_EQ(x.to_vector<double>(), (Values{14, 2, 13, 16, 5, 15}));
  EXPECT_EQ(x.raw_data(), address);
  const Tensor leaf = random_leaf({1, 2}, device());
  EXPECT_TRUE(throws_with<AutogradError>([&] { scatter_(x, 0, indices, leaf); }, "scatter_: the source requires a gradient"));
  EXPECT_TRUE(
      throws_with<AutogradError>([&] { scatter_add_(leaf, 0, indices * 0, source); }, "scatter_add_: the target requires"));
  EXPECT_TRUE(
      throws_with<ValueError>([&] { index_add_(expand(source, {3, 2}), 0, indices, x); }, "index_add_: the target of shape"));
}

TEST_P(Composite, ToIsAMethod) {
  const Tensor x = of({1.5, -2});
  EXPECT_EQ(x.to(DType::int32).to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, -2}));
  EXPECT_TRUE(x.to(x.dtype()).is_same(x));
  EXPECT_TRUE(x.to(device()).is_same(x));
  EXPECT_TRUE(x.to(device(), DType::float64).is_same(x));
  const Tensor moved = x.to(kCPU, DType::float32);
  EXPECT_TRUE(moved.is_cpu() && moved.dtype() == DType::float32);
  const Tensor leaf = random_leaf({3}, device());
  sum(leaf.to(DType::float32).to(kCPU) * 2).backward();
  EXPECT_EQ(leaf.grad().to_vector<double>(), (Values{2, 2, 2}));
}

TEST_P(Composite, BordersAndUnitRows) {
  const Tensor x = of({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(pad(x, {1, 0}).to_vector<double>(), (Values{0, 1, 2, 0, 3, 4}));
  EXPECT_EQ(pad(x, {0, -1, 1, 1}, 9).to_vector<double>(), (Values{9, 1, 3, 9}));
  EXPECT_TRUE(throws_with<ValueError>([&] { pad(x, {1}); }, "pad has 1 numbers"));
  EXPECT_TRUE(throws_with<ValueError>([&] { pad(x, {1, 1, 1, 1, 1, 1}); }, "at most 2 dimensions"));
  EXPECT_TRUE(throws_with<ValueError>([&] { pad(x, {-2, -1}); }, "-2 and -1 leave nothing of dimension 1 of size 2"));
  EXPECT_TRUE(testing_support::all_close(normalize(of({3, 4, 0, 0}, {2, 2})), of({0.6, 0.8, 0, 0}, {2, 2})));
}

TEST_P(Composite, LikeAnotherTensor) {
  const Tensor x = of({1, 2, 3}, {3, 1});
  EXPECT_EQ(full_like(x, 2.5).to_vector<double>(), (Values{2.5, 2.5, 2.5}));
  EXPECT_EQ(full_like(gt(x, 0), false).dtype(), DType::boolean);
  for (const Tensor& like : {rand_like(x), randn_like(x), full_like(x, 1)})
    EXPECT_TRUE(like.shape() == x.shape() && like.dtype() == x.dtype() && like.device() == x.device());
}

TEST_P(Composite, Gradients) {
  const Tensor a = random_leaf({3, 4}, device()), b = random_leaf({4, 2}, device());
  const auto f = [](const Tensors& in) {
    const Tensor &x = in[0], &y = in[1], row = select(x, 0, 1);
    return Tensors{masked_select(x, gt(x, 0)),
                   lerp(row, row * row, 0.3),
                   addcdiv(row, row, row + 9),
                   outer(row, select(y, 1, 0)),
                   dot(row, row),
                   mv(x, row),
                   addmm(sum(y, {0}), x, y, 0.5, 2),
                   tile(y, {2}),
                   movedim(x, {0}, {1}),
                   pad(x, {1, -1, 0, 2}, 7),
                   normalize(x + 3, 3, 1)};
  };
  EXPECT_TRUE(autograd::gradcheck(f, {a, b}));
}

}  // namespace
}  // namespace glade
