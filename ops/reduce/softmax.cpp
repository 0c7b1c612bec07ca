#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/reduce/softmax_kernels.h>
#include <glade/ops/shape/shape.h>

namespace glade {

using autograd::Node;
using autograd::SavedTensor;

namespace {

Tensor move_dim_last(const Tensor& x, std::int64_t dim) { return dim == x.ndim() - 1 ? x : transpose(x, dim, x.ndim() - 1); }

/// Of the last dimension.
Tensor softmax_rows(const char* name, SoftmaxForm form, const Tensor& x) {
  const Tensor rows = contiguous_data(x);
  Tensor y = empty(x.shape(), x.options());
  if (y.numel() > 0) GLADE_DISPATCH(x.device(), softmax, form, rows, y);
  autograd::record(name, y, {&x}, [y = SavedTensor::output(y), form](const Node&, const Tensor& grad) {
    const Tensor result = y.get();
    if (GradMode::enabled()) {
      if (form == SoftmaxForm::log) return Tensors{grad - exp(result) * sum(grad, {-1}, true)};
      return Tensors{result * (grad - sum(grad * result, {-1}, true))};
    }
    Tensor dx = empty(result.shape(), result.options());
    if (dx.numel() > 0) GLADE_DISPATCH(dx.device(), softmax_backward, form, contiguous_data(grad), result, dx);
    return Tensors{dx};
  });
  return y;
}

Tensor softmax_along(const char* name, SoftmaxForm form, const Tensor& input, std::int64_t dim) {
  const Tensor x = is_floating(input.dtype()) ? input : to(input, DType::float32);
  const int d = normalize_dim(dim, x.ndim(), name);
  return contiguous(move_dim_last(softmax_rows(name, form, move_dim_last(x, d)), d));
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) { return softmax_along("softmax", SoftmaxForm::plain, x, dim); }
Tensor log_softmax(const Tensor& x, std::int64_t dim) { return softmax_along("log_softmax", SoftmaxForm::log, x, dim); }

}  // namespace glade
