#pragma once
// Tensor: a strided view of a Storage, with a slot for the tape.
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <glade/core/device.h>
#include <glade/core/dtype.h>
#include <glade/core/shape.h>
#include <glade/core/storage.h>

namespace glade {

namespace autograd {
class Node;
}

class Tensor;
using Tensors = std::vector<Tensor>;  ///< Several tensors, where a function takes or gives any number of them.

/// What a function that makes a tensor needs besides the shape.
struct TensorOptions {
  DType dtype = DType::float32;  ///< float32 unless the function's comment says otherwise.
  Device device = kCPU;          ///< The CPU unless given.
};

/// What the tape keeps at a tensor. Filled by autograd/; core only carries it.
struct AutogradSlot;

/// What a handle points to. Tensors that view the same Storage have each their own.
struct TensorImpl {
  std::shared_ptr<Storage> storage;        ///< Shared among views.
  Shape shape;                             ///< Sizes of the dimensions.
  Strides strides;                         ///< in elements; a broadcast dimension has stride 0
  std::int64_t offset = 0;                 ///< of the first element, in elements
  DType dtype = DType::float32;            ///< The type of the elements.
  bool contiguous = true;                  ///< row-major without gaps
  std::unique_ptr<AutogradSlot> autograd;  ///< Null until the tensor requires a gradient or is recorded.
  void* python_object = nullptr;           ///< Its object in Python while there is one. Kept by bindings/; core only carries it.

  TensorImpl();
  ~TensorImpl();
};

/// A handle: copying it copies no data, and both copies are the same tensor. A default-constructed one is undefined: but for
/// defined(), is_same() and str(), what is asked of it is a ValueError.
/// Functions that compute are free functions (see ops/), but for to(); the members here look at a tensor or tend its tape.
class Tensor {
 public:
  Tensor() = default;
  /// For code that makes tensors of parts; functions below and in ops/ are what programs use.
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}

  /// Row-major copy of `values`; ShapeError where their number is not shape.numel(). T is one of the element types.
  template <class T>
  static Tensor from_vector(const std::vector<T>& values, const Shape& shape, Device device = kCPU);
  /// A one-dimensional tensor of `values`.
  template <class T>
  static Tensor from_vector(const std::vector<T>& values, Device device = kCPU) {
    return from_vector(values, Shape{static_cast<std::int64_t>(values.size())}, device);
  }
  /// A row-major tensor over memory owned elsewhere; `release` runs when the last view is gone.
  static Tensor from_blob(void* data, const Shape& shape, TensorOptions options, std::function<void()> release = {});

  bool defined() const { return impl_ != nullptr; }     ///< Whether it is a tensor at all; a default-constructed handle is none.
  const Shape& shape() const { return known().shape; }  ///< Sizes of the dimensions; empty for a scalar.
  const Strides& strides() const { return known().strides; }  ///< Steps between neighbours along each dimension, in elements.
  int ndim() const { return known().shape.ndim(); }           ///< The number of dimensions; 0 for a scalar.
  /// The size of a dimension, counted from the end where negative.
  std::int64_t size(std::int64_t dim) const { return known().shape[normalize_dim(dim, ndim(), "size")]; }
  std::int64_t numel() const { return known().shape.numel(); }   ///< The number of elements: 1 for a scalar.
  DType dtype() const { return known().dtype; }                  ///< The type of the elements.
  Device device() const { return known().storage->device(); }    ///< Where the memory is.
  bool is_cpu() const { return device().is_cpu(); }              ///< Whether the memory is the host's.
  bool is_cuda() const { return device().is_cuda(); }            ///< Whether the memory is a GPU's.
  TensorOptions options() const { return {dtype(), device()}; }  ///< Its dtype and device, for making another tensor like it.
  /// Whether the elements lie in row-major order without gaps, as kernels of other libraries want them.
  bool is_contiguous() const { return known().contiguous; }
  std::int64_t offset() const { return known().offset; }  ///< Of the first element in the storage, in elements.
  const std::shared_ptr<Storage>& storage() const { return known().storage; }  ///< The memory, shared among views.
  TensorImpl* impl() const { return impl_.get(); }                             ///< What the handle points to; null if undefined.
  const std::shared_ptr<TensorImpl>& shared_impl() const { return impl_; }     ///< The same, to be kept.
  /// Whether both handles are the same tensor (not whether their values agree).
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  /// The first element, in the tensor's device's memory. DTypeError where T is not the element type.
  template <class T>
  T* data() const {
    check_dtype(dtype_of<T>());
    return static_cast<T*>(raw_data());
  }
  /// The first element's address, whatever the dtype; on a GPU not to be read by the host.
  void* raw_data() const {
    const TensorImpl& x = known();
    return static_cast<char*>(x.storage->data()) + static_cast<std::size_t>(x.offset) * dtype_size(x.dtype);
  }

  /// Converted to a dtype, moved to a device, or both; the tensor itself where nothing changes. Differentiable: to() of
  /// ops/elementwise, as a method for chains of calls.
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;               ///< On another device, with the same dtype.
  Tensor to(Device device, DType dtype) const;  ///< Converted where it is, then moved.

  /// Another view of the same memory, unknown to the tape. The caller vouches for the bounds; ops/shape has the
  /// differentiable, checked forms.
  Tensor as_strided(const Shape& shape, const Strides& strides, std::int64_t offset) const;

  /// The value of a tensor of one element, converted to T. Waits for the device. ShapeError for other sizes.
  template <class T>
  T item() const;
  /// All elements in row-major order, converted to T. Waits for the device.
  template <class T>
  std::vector<T> to_vector() const;
  /// Like NumPy's printing: values (the middle of large dimensions left out), then shape, dtype and device.
  std::string str() const;

  // The tape. Declared here because people look for it here; defined in autograd/.
  /// Whether operations on it are recorded: for leaves as set, for results if an input required a gradient.
  bool requires_grad() const;
  /// DTypeError for tensors that are not floating-point; AutogradError for results of recorded operations.
  Tensor& set_requires_grad(bool value = true);
  /// Whether no recorded operation made it: what a program made itself, and results of operations that were not recorded.
  bool is_leaf() const;
  /// The gradient gathered by backward(); undefined before.
  Tensor grad() const;
  /// Replaces what backward() gathered; an undefined tensor forgets it. ShapeError for another shape, dtype or device.
  void set_grad(const Tensor& grad) const;
  /// Adds d(this)/d(leaf) . gradient to the grad() of every leaf. `gradient` defaults to 1 for a tensor of one element.
  void backward(const Tensor& gradient = {}, bool retain_graph = false, bool create_graph = false) const;
  /// The same values, cut off from the tape; shares memory.
  Tensor detach() const;
  /// Calls `hook` with this tensor's gradient during backward; a defined result replaces the gradient (AutogradError there where
  /// it has another shape, dtype or device). Returns a key for remove_hook.
  std::uint64_t register_hook(std::function<Tensor(const Tensor&)> hook) const;
  /// For a leaf that requires a gradient: calls hook(leaf) in every backward() that adds to its grad(), as soon as the last
  /// contribution is in, while the pass goes on with other nodes. On a GPU grad() is final on the stream that is then the current
  /// one of the leaf's device: an event recorded there marks it, and kernels that the hook queues follow it. Where an exception
  /// or Ctrl-C ends a pass with such hooks, some leaves may have their gradients already. Returns a key for remove_hook.
  std::uint64_t register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const;
  void remove_hook(std::uint64_t key) const;  ///< Takes back a hook of either kind; nothing where there is none of that key.

 private:
  const TensorImpl& known() const {
    if (impl_ == nullptr) fail_undefined();
    return *impl_;
  }
  [[noreturn]] static void fail_undefined();
  void check_dtype(DType wanted) const;
  std::shared_ptr<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

// ---- creation --------------------------------------------------------------------------------------------------

/// Uninitialised.
Tensor empty(const Shape& shape, TensorOptions options = {});
Tensor empty_like(const Tensor& x);  ///< The same shape, dtype and device, row-major.
/// Uninitialised, in page-locked host memory.
Tensor empty_pinned(const Shape& shape, DType dtype);
/// All elements 0; bool gives false.
Tensor zeros(const Shape& shape, TensorOptions options = {});
Tensor ones(const Shape& shape, TensorOptions options = {});  ///< All elements 1; bool gives true.
/// All elements `value`, converted to the dtype; float32 unless the options say otherwise, whatever the value's type.
Tensor full(const Shape& shape, Scalar value, TensorOptions options = {});
Tensor zeros_like(const Tensor& x);  ///< 0 in x's shape, dtype and device.
Tensor ones_like(const Tensor& x);   ///< 1 in x's shape, dtype and device.

// ---- data movement below the tape (ops/ has the differentiable forms) -----------------------------------------------

/// dst[...] = src, converted to dst's dtype and copied to its device, src broadcast to dst's shape. Counts as an in-place change
/// of dst. Copies between pinned host memory and a GPU are asynchronous on the current stream. So are others to a GPU of up to
/// 4 MiB, but src may change at once; the rest between devices waits.
void copy_data(const Tensor& dst, const Tensor& src);
/// dst[...] = value.
void fill_data(const Tensor& dst, Scalar value);
/// A row-major copy on the same device (the tensor itself where it is row-major already).
Tensor contiguous_data(const Tensor& x);
/// A converted row-major copy; x itself where nothing changes.
Tensor to_data(const Tensor& x, DType dtype);
Tensor to_data(const Tensor& x, Device device);

/// DeviceError, naming the operation and both devices, unless all defined tensors live on one device.
void check_same_device(const char* operation, std::initializer_list<std::pair<const char*, const Tensor*>> arguments);

}  // namespace glade
