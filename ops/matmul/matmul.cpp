#include <glade/ops/matmul/matmul.h>

#include <glade/autograd/gradient_memory.h>
#include <glade/autograd/running_pass.h>
#include <glade/core/accumulate.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/loops.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul_kernels.h>
#include <glade/ops/matmul/multiply_into.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

using autograd::SavedTensor;

void check_floating(const char* operation, const char* name, const Tensor& x) {
  if (!is_floating(x.dtype())) fail<DTypeError>("{}: {} is {}, expected a floating-point tensor", operation, name, x.dtype());
}

/// Whether BLAS can read the matrices in the last two dimensions of x where they lie, and how.
bool describe(const Tensor& x, GemmMatrix& matrix) {
  const int row = x.ndim() - 2, column = x.ndim() - 1;
  const std::int64_t rows = x.shape()[row], columns = x.shape()[column];
  // The step along a dimension of size 1 is never taken, so it may be whatever suits.
  const std::int64_t row_step = rows == 1 ? columns : x.strides()[row], column_step = columns == 1 ? rows : x.strides()[column];
  matrix.data = x.raw_data();
  if ((columns == 1 || column_step == 1) && row_step >= columns) {
    matrix.transposed = false;
    matrix.leading = row_step;
    return true;
  }
  if ((rows == 1 || row_step == 1) && column_step >= rows) {
    matrix.transposed = true;
    matrix.leading = column_step;
    return true;
  }
  return false;
}

/// x, or a copy of it where BLAS cannot read it, and how its matrices lie.
Tensor described(const Tensor& x, GemmMatrix& matrix) {
  if (describe(x, matrix)) return x;
  const Tensor copy = contiguous_data(x);
  describe(copy, matrix);
  return copy;
}

/// The batch dimensions of x alone.
Tensor batch_view(const Tensor& x) {
  const auto batch = static_cast<std::size_t>(x.ndim() - 2);
  return x.as_strided(Shape(std::span(x.shape().begin(), batch)), Strides(std::span(x.strides().begin(), batch)), x.offset());
}

/// Makes the innermost batch dimension more rows of one product, where b is the same all along it and the rows of a
/// step on evenly from one matrix to the next.
void fold_batch(Gemm& problem) {
  GemmMatrix& a = problem.a;
  if (problem.batch == 1 || problem.b.batch_stride != 0 || problem.out_batch_stride != problem.m * problem.n) return;
  if (problem.m == 1 && !a.transposed && a.batch_stride >= problem.k) a.leading = a.batch_stride;
  const std::int64_t row_step = a.transposed ? 1 : a.leading;
  if (a.batch_stride != problem.m * row_step || (a.transposed && a.leading < problem.m * problem.batch)) return;
  problem.m *= problem.batch;
  problem.batch = 1;
  a.batch_stride = problem.out_batch_stride = 0;
}

/// a [..., m, k] times b [..., k, n], plus bias [n] and addend [..., m, n] where defined; one dtype and device. The result has
/// out_dtype: theirs or, for 16-bit ones, float32, as then the addend. Not recorded.
Tensor product(const Tensor& a, const Tensor& b, DType out_dtype, const Tensor& bias = {}, const Tensor& addend = {}) {
  const Shape batch_shape = broadcast_shapes(batch_view(a).shape(), batch_view(b).shape(), "matmul");
  Shape shape = batch_shape;
  Gemm problem{.device = a.device(), .dtype = a.dtype(), .out_dtype = out_dtype};
  problem.m = a.size(-2);
  problem.n = b.size(-1);
  problem.k = a.size(-1);
  shape.push_back(problem.m);
  shape.push_back(problem.n);
  Tensor out = empty(shape, {out_dtype, a.device()});
  if (out.numel() == 0) return out;
  if (problem.k == 0) {
    if (bias.defined()) copy_data(out, bias);
    else fill_data(out, 0);
    if (addend.defined()) add_data(out, out, addend);
    return out;
  }
  const Tensor contiguous_bias = bias.defined() ? contiguous_data(bias) : bias;
  if (bias.defined()) problem.bias = contiguous_bias.raw_data();
  const Tensor contiguous_addend = addend.defined() ? contiguous_data(addend) : addend;
  GemmMatrix a_matrix, b_matrix;
  const Tensor x = described(a, a_matrix), y = described(b, b_matrix);

  // The libraries take one batch dimension: the innermost after merging. Further ones are looped over.
  const LoopPlan<3> plan = plan_loop(batch_shape, batch_view(out), batch_view(x), batch_view(y));
  const auto bytes = static_cast<std::int64_t>(dtype_size(a.dtype())),
             out_bytes = static_cast<std::int64_t>(dtype_size(out_dtype));
  const std::int64_t calls = plan.numel / plan.shape[0];
  for (std::int64_t call = 0; call < calls; ++call) {
    std::int64_t at[3] = {}, rest = call;
    for (int d = 1; d < plan.ndim; ++d) {
      for (int i = 0; i < 3; ++i) at[i] += rest % plan.shape[d] * plan.strides[i][d] * (i == 0 ? out_bytes : bytes);
      rest /= plan.shape[d];
    }
    problem.m = a.size(-2);
    problem.batch = plan.shape[0];
    problem.out = static_cast<char*>(out.raw_data()) + at[0];
    if (addend.defined()) problem.addend = static_cast<const char*>(contiguous_addend.raw_data()) + at[0];
    problem.out_batch_stride = plan.strides[0][0];
    problem.a = a_matrix;
    problem.a.data = static_cast<const char*>(a_matrix.data) + at[1];
    problem.a.batch_stride = plan.strides[1][0];
    problem.b = b_matrix;
    problem.b.data = static_cast<const char*>(b_matrix.data) + at[2];
    problem.b.batch_stride = plan.strides[2][0];
    fold_batch(problem);
    GLADE_DISPATCH(a.device(), gemm, problem);
  }
  return out;
}

Tensor swap_last(const Tensor& x) { return transpose(x, -1, -2); }

}  // namespace

Tensor rows_of(const Tensor& x) {
  std::int64_t rows = 1;
  for (int d = 0; d + 1 < x.ndim(); ++d) rows *= x.shape()[d];
  return reshape(x, {rows, x.size(-1)});
}

void multiply_into(const Tensor& out, const Tensor& a, const Tensor& b, bool accumulate) {
  Gemm problem{.device = a.device(), .dtype = a.dtype(), .out_dtype = out.dtype()};
  problem.m = a.size(0);
  problem.n = b.size(1);
  problem.k = a.size(1);
  problem.out = out.raw_data();
  if (accumulate) problem.addend = problem.out;
  if (out.numel() == 0) return;
  if (problem.k == 0) return accumulate ? void() : fill_data(out, 0);
  const Tensor x = described(a, problem.a), y = described(b, problem.b);
  GLADE_DISPATCH(a.device(), gemm, problem);
}

Tensor linear_data(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& addend) {
  const Tensor transposed =
      weight.as_strided({weight.size(1), weight.size(0)}, {weight.strides()[1], weight.strides()[0]}, weight.offset());
  return product(x, transposed, x.dtype(), bias, addend);
}

Tensor weight_gradient(const autograd::Node& node, std::size_t input, const Tensor& grad, const Tensor& x, DType dtype,
                       std::size_t count) {
  if (!node.needs_grad(input)) return {};
  const Tensor out = autograd::empty_leaf_gradients(node, input, count, {grad.size(1), x.size(1)},
                                                    {dtype == DType::float32 ? dtype : x.dtype(), x.device()});
  const auto multiply = [transposed = transpose(grad, 0, 1), x](const Tensor& product) { multiply_into(product, transposed, x); };
  if (node.leads_to_leaf(input) && out.dtype() == dtype) autograd::defer(out, multiply);
  else multiply(out);
  return to_data(out, dtype);
}

namespace {

Tensor product_of_integers(const Tensor& a, const Tensor& b) {
  Shape shape = broadcast_shapes(batch_view(a).shape(), batch_view(b).shape(), "matmul");
  const auto batched = [batch = shape](const Tensor& x) {
    Shape whole = batch;
    whole.push_back(x.size(-2));
    whole.push_back(x.size(-1));
    return contiguous_data(reshape(expand(x, whole), {batch.numel(), x.size(-2), x.size(-1)}));
  };
  const Tensor x = batched(a), y = batched(b);
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  const Tensor out = empty(shape, a.options());
  if (out.numel() > 0) GLADE_DISPATCH(out.device(), multiply_integers, reshape(out, {x.size(0), x.size(1), y.size(2)}), x, y);
  return out;
}

/// matmul(a, b), where unrounded in float32 for 16-bit operands.
Tensor checked_product(const Tensor& a, const Tensor& b, bool unrounded) {
  check_same_device("matmul", {{"a", &a}, {"b", &b}});
  for (const auto& [name, x] : {std::pair{"a", &a}, std::pair{"b", &b}})
    if (x->dtype() == DType::boolean) fail<DTypeError>("matmul: {} is bool, expected numbers", name);
  if (a.ndim() == 0 || b.ndim() == 0)
    fail<ShapeError>("matmul: a is {} and b is {}, expected at least one dimension of each", a.shape(), b.shape());
  const std::int64_t inner = b.size(b.ndim() == 1 ? 0 : -2);
  if (a.size(-1) != inner)
    fail<ShapeError>("matmul: a is {} and b is {}: the inner sizes {} and {} differ", a.shape(), b.shape(), a.size(-1), inner);

  if (a.dtype() != b.dtype()) {
    const DType dtype = promote(a.dtype(), b.dtype());
    return checked_product(to(a, dtype), to(b, dtype), unrounded);
  }
  if (a.ndim() == 1) return squeeze(checked_product(unsqueeze(a, 0), b, unrounded), b.ndim() == 1 ? -1 : -2);
  if (b.ndim() == 1) return squeeze(checked_product(a, unsqueeze(b, -1), unrounded), -1);

  if (!is_floating(a.dtype())) return product_of_integers(a, b);
  Tensor out = product(a, b, unrounded && dtype_size(a.dtype()) == 2 ? DType::float32 : a.dtype());
  const bool a_needs = a.requires_grad(), b_needs = b.requires_grad();
  autograd::record("matmul", out, {&a, &b},
                   [a = SavedTensor(b_needs ? a : Tensor()), b = SavedTensor(a_needs ? b : Tensor()), a_shape = a.shape(),
                    b_shape = b.shape(), dtype = a.dtype()](const autograd::Node& node, const Tensor& of_out) {
                     const Tensor grad = to(of_out, dtype);
                     Tensors grads(2);
                     if (node.needs_grad(0)) grads[0] = sum_to(matmul(grad, swap_last(b.get())), a_shape);
                     // An unbatched b gathers over all batches: one product over all rows.
                     if (node.needs_grad(1) && b_shape.ndim() == 2) grads[1] = matmul(swap_last(rows_of(a.get())), rows_of(grad));
                     else if (node.needs_grad(1)) grads[1] = sum_to(matmul(swap_last(a.get()), grad), b_shape);
                     return grads;
                   });
  return out;
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) { return checked_product(a, b, false); }
Tensor matmul_unrounded(const Tensor& a, const Tensor& b) { return checked_product(a, b, true); }

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_same_device("linear", {{"x", &x}, {"weight", &weight}, {"bias", &bias}});
  check_floating("linear", "x", x);
  check_floating("linear", "weight", weight);
  if (weight.ndim() != 2) fail<ShapeError>("linear: weight is {}, expected [out, in]", weight.shape());
  if (x.ndim() == 0 || x.size(-1) != weight.size(1))
    fail<ShapeError>("linear: x is {}, expected [..., {}] for weight {}", x.shape(), weight.size(1), weight.shape());
  DType dtype = promote(x.dtype(), weight.dtype());
  if (bias.defined()) {
    check_floating("linear", "bias", bias);
    if (!(bias.shape() == Shape{weight.size(0)}))
      fail<ShapeError>("linear: bias is {}, expected [{}] for weight {}", bias.shape(), weight.size(0), weight.shape());
    dtype = promote(dtype, bias.dtype());
  }

  if (x.dtype() != dtype || weight.dtype() != dtype || (bias.defined() && bias.dtype() != dtype))
    return linear(to(x, dtype), to(weight, dtype), bias.defined() ? to(bias, dtype) : bias);
  if (x.ndim() == 1) return squeeze(linear(unsqueeze(x, 0), weight, bias), 0);

  Tensor out = linear_data(x, weight, bias);
  const bool x_needs = x.requires_grad(), weight_needs = weight.requires_grad();
  autograd::record("linear", out, {&x, &weight, &bias},
                   [x = SavedTensor(weight_needs ? x : Tensor()), weight = SavedTensor(x_needs ? weight : Tensor())](
                       const autograd::Node& node, const Tensor& grad) {
                     Tensors grads(3);
                     if (node.needs_grad(0)) grads[0] = matmul(grad, weight.get());
                     if (node.needs_grad(1)) grads[1] = matmul(swap_last(rows_of(grad)), rows_of(x.get()));
                     if (node.needs_grad(2)) grads[2] = sum(rows_of(grad), {0});
                     return grads;
                   });
  return out;
}

}  // namespace glade
