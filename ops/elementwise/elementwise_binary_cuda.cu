#include <glade/ops/elementwise/launch_cuda.cuh>

namespace glade::cuda {

namespace {

/// Both gradients in one launch, and the gradient read once. On memory without gaps, aligned to 16 bytes.
template <class T>
__global__ void __launch_bounds__(detail::kThreads)
    multiply_backward_kernel(std::int64_t n, T* grad_a, T* grad_b, const T* gradient, const T* a, const T* b) {
  constexpr int kWidth = 16 / sizeof(T);
  using Vector = detail::Vector<T, kWidth>;
  const functors::BinaryBody<functors::Multiply, T> multiply;
  const std::int64_t i = std::int64_t{blockIdx.x} * detail::kThreads + threadIdx.x, vectors = n / kWidth;
  if (i < vectors) {
    const Vector g = reinterpret_cast<const Vector*>(gradient)[i], x = reinterpret_cast<const Vector*>(a)[i],
                 y = reinterpret_cast<const Vector*>(b)[i];
    Vector gx, gy;
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      gx.x[j] = multiply(g.x[j], y.x[j]);
      gy.x[j] = multiply(g.x[j], x.x[j]);
    }
    detail::store(grad_a + i * kWidth, gx);
    detail::store(grad_b + i * kWidth, gy);
  }
  const std::int64_t last = vectors * kWidth + i;  // the first threads take what is left
  if (i < kWidth && last < n) {
    grad_a[last] = multiply(gradient[last], b[last]);
    grad_b[last] = multiply(gradient[last], a[last]);
  }
}

}  // namespace

void multiply_backward(const Tensor& grad_a, const Tensor& grad_b, const Tensor& gradient, const Tensor& a, const Tensor& b) {
  const auto suits = [](const Tensor& x) {
    return x.is_contiguous() && reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
  };
  if (!suits(grad_a) || !suits(grad_b) || !suits(gradient) || !suits(a) || !suits(b)) {
    binary(Binary::multiply, grad_a, gradient, b);
    return binary(Binary::multiply, grad_b, gradient, a);
  }
  const std::int64_t n = grad_a.numel();
  if (n == 0) return;
  const DeviceGuard guard(grad_a.device());
  visit_floating(grad_a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kNumbers = detail::kThreads * 16 / sizeof(T);  // of a block
    launch_kernel(multiply_backward_kernel<T>, blocks_for(n, kNumbers), detail::kThreads, grad_a.device(), n, grad_a.data<T>(),
                  grad_b.data<T>(), gradient.data<T>(), a.data<T>(), b.data<T>());
  });
}

void binary(Binary op, const Tensor& out, const Tensor& a, const Tensor& b) { launcher(out).binary(op, out, a, b); }
void with_scalar(WithScalar op, const Tensor& out, const Tensor& x, Scalar number) {
  launcher(out).with_scalar(op, out, x, number);
}
void scale(const Tensor& out, const Tensor& x, const Tensor& factor) { launcher(out).scale(out, x, factor); }

}  // namespace glade::cuda
