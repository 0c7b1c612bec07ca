// Python's buffer protocol: tensors as arrays for NumPy, and NumPy's arrays as tensors, sharing memory.
#include <array>

#include "python.h"

namespace glade::python {

namespace {

/// What a Py_buffer points to, in bytes where the protocol wants bytes.
struct BufferLayout {
  std::array<Py_ssize_t, kMaxDims> shape, strides;
  std::weak_ptr<Storage> lent;  // not an owner, as recorded assignments ask whether there are more
};

const char* format_of(DType dtype) {
  switch (dtype) {
    case DType::float64: return "d";
    case DType::float32: return "f";
    case DType::float16: return "e";
    case DType::int64: return "q";
    case DType::int32: return "i";
    case DType::uint8: return "B";
    case DType::boolean: return "?";
    case DType::bfloat16: break;
  }
  return nullptr;
}

std::optional<DType> dtype_of_format(const char* format, Py_ssize_t itemsize) {
  if (format == nullptr) return DType::uint8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == '\0' || format[1] != '\0') return std::nullopt;
  switch (*format) {
    case 'd': return DType::float64;
    case 'f': return DType::float32;
    case 'e': return DType::float16;
    case 'B': return DType::uint8;
    case '?': return DType::boolean;
    case 'i':
    case 'l':
    case 'q': return itemsize == 8 ? DType::int64 : DType::int32;
    default: return std::nullopt;
  }
}

/// A buffer that is given back, under the interpreter lock, with the last tensor over it.
std::shared_ptr<Py_buffer> acquire(py::handle array) {
  auto* view = new Py_buffer;
  if (PyObject_GetBuffer(array.ptr(), view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
    delete view;
    throw py::error_already_set();
  }
  return {view, [](Py_buffer* held) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire locked;
            PyBuffer_Release(held);
            delete held;
          }};
}

/// Whether a tensor can lie over the memory: writable, strides in elements, none negative, and elements at addresses of their
/// size.
bool can_be_shared(const Py_buffer& view) {
  if (view.readonly != 0) return false;
  if (reinterpret_cast<std::uintptr_t>(view.buf) % static_cast<std::size_t>(view.itemsize) != 0) return false;
  for (int d = 0; d < view.ndim; ++d)
    if (view.strides[d] < 0 || view.strides[d] % view.itemsize != 0) return false;
  return true;
}

Tensor tensor_over(const std::shared_ptr<Py_buffer>& view, DType dtype) {
  Shape shape, strides;
  std::int64_t span = 1;  // elements from the first to the last
  for (int d = 0; d < view->ndim; ++d) {
    shape.push_back(view->shape[d]);
    strides.push_back(view->strides[d] / view->itemsize);
    span += (shape[d] - 1) * strides[d];
  }
  if (shape.numel() == 0) return empty(shape, {dtype, kCPU});
  const Tensor x = Tensor::from_blob(view->buf, {span}, {dtype, kCPU}, [view] {});
  x.storage()->lend();  // never taken back: the array's owner may write to it at any time
  return x.as_strided(shape, strides, 0);
}

/// The integers that NumPy has and glade lacks become wider ones; null for all else.
const char* wider_integers(const std::string& code) {
  if (code == "|i1" || code == "<i2" || code == "<u2") return "<i4";
  return code == "<u4" ? "<i8" : nullptr;
}

Tensor tensor_from_numpy(py::handle array) {
  const py::object dtype = array.attr("dtype");
  const bool is_bfloat16 = py::str(dtype).cast<std::string>() == "bfloat16";  // of ml_dtypes; NumPy has none
  py::object source = py::reinterpret_borrow<py::object>(array);
  if (is_bfloat16) source = array.attr("view")("uint16");
  std::string code = py::cast<std::string>(source.attr("dtype").attr("str"));
  if (const char* wider = wider_integers(code); wider != nullptr && !is_bfloat16) {
    source = source.attr("astype")(wider);
    code = wider;
  }
  const bool is_known = is_bfloat16 || code == "|b1" || code == "|u1" || code == "<f2" || code == "<f4" || code == "<f8" ||
                        code == "<i4" || code == "<i8";
  if (!is_known)
    throw DTypeError("NumPy's dtype " + std::string(py::str(dtype)) + " has no counterpart in glade; convert the array first");
  std::shared_ptr<Py_buffer> view = acquire(source);
  if (!can_be_shared(*view)) view = acquire(source.attr("copy")());
  return tensor_over(view, is_bfloat16 ? DType::bfloat16 : *dtype_of_format(view->format, view->itemsize));
}

}  // namespace

Tensor from_dlpack(py::handle array);

Tensor tensor_from_array(py::handle object) {
  if (is_tensor(object.ptr())) return tensor_of(object.ptr());
  if (PyObject_CheckBuffer(object.ptr()) && py::hasattr(object, "__array_interface__")) return tensor_from_numpy(object);
  if (py::hasattr(object, "__dlpack__")) return from_dlpack(object);
  return {};
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Tensor& x = tensor_of(self);
  view->obj = nullptr;
  const char* refusal =
      x.is_cuda()                                                      ? "a tensor on a GPU has no buffer: take x.cpu() first"
      : x.requires_grad()                                              ? "the tensor requires a gradient: take x.detach() first"
      : format_of(x.dtype()) == nullptr                                ? "bfloat16 has no buffer format"
      : !x.is_contiguous() && (flags & PyBUF_STRIDES) != PyBUF_STRIDES ? "the tensor is not contiguous"
      : !x.is_contiguous() && (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS     ? "the tensor is not contiguous"
      : !x.is_contiguous() && (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS ? "the tensor is not contiguous"
      : (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && x.ndim() > 1           ? "the tensor is not in Fortran's order"
                                                                                     : nullptr;
  if (refusal != nullptr) {
    PyErr_SetString(PyExc_BufferError, refusal);
    return -1;
  }
  auto* layout = new BufferLayout;
  const auto itemsize = static_cast<Py_ssize_t>(dtype_size(x.dtype()));
  for (int d = 0; d < x.ndim(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    layout->shape[i] = x.shape()[d];
    layout->strides[i] = x.strides()[d] * itemsize;
  }
  static char nothing = 0;  // where an empty tensor's buffer points
  view->buf = x.numel() == 0 ? &nothing : x.raw_data();
  view->obj = self;
  Py_INCREF(self);
  view->len = x.numel() * itemsize;
  view->itemsize = itemsize;
  view->readonly = 0;
  view->ndim = x.ndim();
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format_of(x.dtype())) : nullptr;
  view->shape = (flags & PyBUF_ND) != 0 ? layout->shape.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? layout->strides.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = layout;
  layout->lent = x.storage();
  x.storage()->lend();
  return 0;
}

void release_buffer(PyObject*, Py_buffer* view) {
  const std::unique_ptr<BufferLayout> layout(static_cast<BufferLayout*>(view->internal));
  if (const std::shared_ptr<Storage> lent = layout->lent.lock()) lent->take_back();
}

}  // namespace glade::python
