#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/einsum.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

class Einsum : public DeviceTest {};
GLADE_DEVICE_TESTS(Einsum);

TEST_P(Einsum, EqualsOtherOperations) {
  const auto make = [&](const Shape& shape) { return random_tensor(shape, device()); };
  const Tensor a = make({3, 4}), b = make({4, 5}), v = make({4}), s = make({4, 4}), x = make({2, 3, 4}), y = make({2, 4, 5});
  const auto expect = [](const char* equation, const Tensors& operands, const Tensor& expected) {
    EXPECT_TRUE(all_close(einsum(equation, operands), expected, 1e-12, 1e-12)) << equation;
  };
  expect("ik,kj->ij", {a, b}, matmul(a, b));
  expect("ik, kj", {a, b}, matmul(a, b));
  expect("ik,kj->ji", {a, b}, transpose(matmul(a, b), 0, 1));
  expect("ij->ji", {a}, transpose(a, 0, 1));
  expect("ba", {a}, transpose(a, 0, 1));
  expect("ij->", {a}, sum(a));
  expect("ij->j", {a}, sum(a, {0}));
  expect("i,i->", {v, v}, sum(v * v));
  expect("i,i->i", {v, v}, v * v);
  expect("i,j->ij", {v, make({1}) * 0 + 2}, unsqueeze(v, 1) * 2);
  expect("ij,j->i", {a, v}, matmul(a, v));
  expect("bik,bkj->bij", {x, y}, matmul(x, y));
  expect("...ik,...kj->...ij", {x, y}, matmul(x, y));
  expect("...ik,kj->...ij", {x, b}, matmul(x, b));
  expect("...i->...", {x}, sum(x, {2}));
  expect("bij,bij->b", {x, x}, sum(x * x, {1, 2}));
  expect("bij,cij->bc", {x, x}, matmul(reshape(x, {2, 12}), transpose(reshape(x, {2, 12}), 0, 1)));
  expect("ij,jk,kl->il", {a, b, make({5, 2}) * 0 + 1}, matmul(matmul(a, b), ones({5, 2}, a.options())));
  expect("ij,kj,j->ik", {a, a, v}, matmul(a * v, transpose(a, 0, 1)));
  expect("ij,ik->", {a, make({3, 2}) * 0 + 1}, sum(a) * 2);
  expect("ii->i", {s}, s.as_strided({4}, {5}, 0));
  expect("ii->", {s}, sum(s.as_strided({4}, {5}, 0)));
  EXPECT_EQ(einsum("ij,ij->ij", {a, slice(a, 0, 0, 1)}).shape(), (Shape{3, 4}));  // a size of 1 broadcasts
}

TEST_P(Einsum, Gradients) {
  const Tensor a = random_leaf({2, 3}, device()), b = random_leaf({3, 2, 4}, device()), s = random_leaf({3, 3}, device());
  const auto check = [](const char* equation, const Tensors& operands) {
    const auto f = [equation](const Tensors& in) { return Tensors{einsum(equation, in)}; };
    EXPECT_TRUE(autograd::gradcheck(f, operands)) << equation;
    EXPECT_TRUE(autograd::gradgradcheck(f, operands)) << equation;
  };
  check("ij,jki->k", {a, random_leaf({3, 4, 2}, device())});
  check("ij,jik->ijk", {a, b});
  check("ii->i", {s});
}

TEST_P(Einsum, Errors) {
  const Tensor a = zeros({2, 3}, {DType::float32, device()}), n = zeros({2, 3}, {DType::int64, device()});
  EXPECT_TRUE(throws_with<ValueError>([&] { einsum("ij,jk->ik", {a}); }, "has 2 operands, got 1"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { einsum("ijk->i", {a}); }, "'ijk' has other dimensions than operand 0"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { einsum("ij,jk->ik", {a, a}); }, "dimension 'j' has the sizes 3 and 2"));
  EXPECT_TRUE(throws_with<ShapeError>([&] { einsum("ii->i", {a}); }, "have two sizes"));
  EXPECT_TRUE(throws_with<ValueError>([&] { einsum("ij->ik", {a}); }, "the result's 'k'"));
  EXPECT_TRUE(throws_with<ValueError>([&] { einsum("ij->ii", {a}); }, "the result's 'i'"));
  EXPECT_TRUE(throws_with<ValueError>([&] { einsum("i1->i", {a}); }, "'1' is no letter"));
  EXPECT_TRUE(throws_with<ValueError>([&] { einsum("i.j->i", {zeros({2, 3, 4})}); }, "expected letters, ... once a term"));
  EXPECT_TRUE(throws_with<DTypeError>([&] { einsum("ij->i", {n}); }, "the operands are int64"));
}

}  // namespace
}  // namespace glade
