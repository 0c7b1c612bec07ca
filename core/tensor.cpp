#include <glade/core/tensor.h>

#include <algorithm>
#include <cstring>

#include <glade/core/copy_kernels.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/core/scalar_range.h>

namespace glade {

namespace {

std::shared_ptr<TensorImpl> make_impl(std::shared_ptr<Storage> storage, const Shape& shape, const Strides& strides, DType dtype) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::move(storage);
  impl->shape = shape;
  impl->strides = strides;
  impl->dtype = dtype;
  return impl;
}

std::size_t bytes_of(const Shape& shape, DType dtype) {
  // Checked: sizes come from users, and a wrapped product would pass for a small allocation.
  std::size_t bytes = dtype_size(dtype);
  for (const std::int64_t size : shape) {
    if (size < 0) fail<ShapeError>("empty: the shape {} has a negative size", shape);
    if (__builtin_mul_overflow(bytes, static_cast<std::size_t>(size), &bytes))
      fail<OutOfMemoryError>("a tensor of shape {} is too large", shape);
  }
  return bytes;
}

bool strides_are_contiguous(const Shape& shape, const Strides& strides) {
  if (shape.numel() == 0) return true;
  std::int64_t expected = 1;
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

/// Host copy of all elements in row-major order.
Tensor host_contiguous(const Tensor& x) { return to_data(contiguous_data(x), kCPU); }

}  // namespace

Tensor Tensor::from_blob(void* data, const Shape& shape, TensorOptions options, std::function<void()> release) {
  auto storage = std::make_shared<Storage>(data, bytes_of(shape, options.dtype), options.device, std::move(release));
  return Tensor(make_impl(std::move(storage), shape, shape.contiguous_strides(), options.dtype));
}

template <class T>
Tensor Tensor::from_vector(const std::vector<T>& values, const Shape& shape, Device device) {
  Tensor host = glade::empty(shape, {dtype_of<T>(), kCPU});
  if (static_cast<std::int64_t>(values.size()) != shape.numel())
    fail<ShapeError>("from_vector: {} values do not fill shape {}", values.size(), shape);
  std::copy(values.begin(), values.end(), host.data<T>());
  return to_data(host, device);
}

Tensor Tensor::as_strided(const Shape& shape, const Strides& strides, std::int64_t offset) const {
  auto impl = make_impl(storage(), shape, strides, dtype());
  impl->offset = offset;
  impl->contiguous = strides_are_contiguous(shape, strides);
  return Tensor(std::move(impl));
}

void Tensor::fail_undefined() {
  throw ValueError("the tensor is undefined: it was default-constructed, and has no shape, dtype or device");
}

void Tensor::check_dtype(DType wanted) const {
  if (dtype() != wanted) fail<DTypeError>("the tensor holds {}, not {}", dtype(), wanted);
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const Tensor host = host_contiguous(*this);
  std::vector<T> values(static_cast<std::size_t>(numel()));
  visit_all(dtype(), [&](auto tag) {
    using From = typename decltype(tag)::type;
    const auto* const data = stored<From>(host.data<From>());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = Convert<T, From>{}(data[i]);
  });
  return values;
}

template <class T>
T Tensor::item() const {
  if (!defined()) fail<ValueError>("item: the tensor is undefined");
  if (numel() != 1) fail<ShapeError>("item: expected a tensor of one element, got shape {}", shape());
  return to_vector<T>()[0];
}

#define GLADE_INSTANTIATE(T) template Tensor Tensor::from_vector<T>(const std::vector<T>&, const Shape&, Device);
GLADE_INSTANTIATE(double)
GLADE_INSTANTIATE(float)
GLADE_INSTANTIATE(bfloat16)
GLADE_INSTANTIATE(float16)
GLADE_INSTANTIATE(std::int64_t)
GLADE_INSTANTIATE(std::int32_t)
GLADE_INSTANTIATE(std::uint8_t)
GLADE_INSTANTIATE(bool)
#undef GLADE_INSTANTIATE
#define GLADE_INSTANTIATE(T)          \
  template T Tensor::item<T>() const; \
  template std::vector<T> Tensor::to_vector<T>() const;
GLADE_INSTANTIATE(double)
GLADE_INSTANTIATE(float)
GLADE_INSTANTIATE(std::int64_t)
GLADE_INSTANTIATE(std::int32_t)
GLADE_INSTANTIATE(std::uint8_t)
GLADE_INSTANTIATE(bool)
#undef GLADE_INSTANTIATE

Tensor empty(const Shape& shape, TensorOptions options) {
  auto storage = std::make_shared<Storage>(bytes_of(shape, options.dtype), options.device);
  return Tensor(make_impl(std::move(storage), shape, shape.contiguous_strides(), options.dtype));
}

Tensor empty_like(const Tensor& x) { return empty(x.shape(), x.options()); }

Tensor empty_pinned(const Shape& shape, DType dtype) {
  return Tensor(make_impl(Storage::pinned(bytes_of(shape, dtype)), shape, shape.contiguous_strides(), dtype));
}

Tensor full(const Shape& shape, Scalar value, TensorOptions options) {
  Tensor x = empty(shape, options);
  fill_data(x, value);
  return x;
}

Tensor zeros(const Shape& shape, TensorOptions options) { return full(shape, 0, options); }
Tensor ones(const Shape& shape, TensorOptions options) { return full(shape, 1, options); }
Tensor zeros_like(const Tensor& x) { return zeros(x.shape(), x.options()); }
Tensor ones_like(const Tensor& x) { return ones(x.shape(), x.options()); }

void copy_data(const Tensor& dst, const Tensor& src) {
  if (!(broadcast_shapes(dst.shape(), src.shape(), "copy") == dst.shape()))
    fail<ShapeError>("copy: the source of shape {} does not broadcast to the target of shape {}", src.shape(), dst.shape());
  dst.storage()->bump_version();
  if (dst.numel() == 0) return;
  if (dst.device() == src.device()) {
    GLADE_DISPATCH(dst.device(), copy_strided, dst, src);
    return;
  }
#if defined(GLADE_WITH_CUDA)
  // Across devices only bytes move: conversion, broadcasting and gathering happen at the source, scattering at the target.
  Tensor sent = src;
  if (!(sent.shape() == dst.shape()) || !sent.is_contiguous() || sent.dtype() != dst.dtype()) {
    sent = empty(dst.shape(), {dst.dtype(), src.device()});
    copy_data(sent, src);
  }
  const Tensor received = dst.is_contiguous() ? dst : empty(dst.shape(), dst.options());
  const bool asynchronous = (src.is_cuda() && dst.is_cuda()) || (sent.is_same(src) && src.storage()->is_pinned()) ||
                            (received.is_same(dst) && dst.storage()->is_pinned());
  cuda::copy_bytes(received.raw_data(), dst.device(), sent.raw_data(), src.device(),
                   static_cast<std::size_t>(dst.numel()) * dtype_size(dst.dtype()), asynchronous);
  if (!received.is_same(dst)) copy_data(dst, received);
#else
  detail::throw_no_cuda();
#endif
}

void fill_data(const Tensor& dst, Scalar value) {
  check_fits("fill", value, dst.dtype());
  dst.storage()->bump_version();
  if (dst.numel() == 0) return;
  GLADE_DISPATCH(dst.device(), fill, dst, value);
}

Tensor contiguous_data(const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor copy = empty(x.shape(), x.options());
  copy_data(copy, x);
  return copy;
}

namespace {
Tensor converted(const Tensor& x, TensorOptions options) {
  if (options.dtype == x.dtype() && options.device == x.device()) return x;
  Tensor copy = empty(x.shape(), options);
  copy_data(copy, x);
  return copy;
}
}  // namespace

Tensor to_data(const Tensor& x, DType dtype) { return converted(x, {dtype, x.device()}); }
Tensor to_data(const Tensor& x, Device device) { return converted(x, {x.dtype(), device}); }

void check_same_device(const char* operation, std::initializer_list<std::pair<const char*, const Tensor*>> arguments) {
  const std::pair<const char*, const Tensor*>* first = nullptr;
  for (const auto& argument : arguments) {
    if (!argument.second->defined()) continue;
    if (first == nullptr) first = &argument;
    else if (!(first->second->device() == argument.second->device()))
      fail<DeviceError>("{}: {} is on {}, but {} is on {}", operation, first->first, first->second->device(), argument.first,
                        argument.second->device());
  }
}

}  // namespace glade
