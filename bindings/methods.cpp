// The methods of Tensor that have no counterpart among the operations.
#include "python.h"

namespace glade::python {

namespace {

using py::arg;

py::object item(const Tensor& x) {
  if (x.dtype() == DType::boolean) return py::bool_(value_of<bool>(x));
  if (is_integral(x.dtype())) return py::int_(value_of<std::int64_t>(x));
  return py::float_(value_of<double>(x));
}

/// A NumPy array over the tensor's memory.
py::object numpy(const Tensor& x) {
  if (x.is_cuda()) throw DeviceError("numpy: the tensor is on " + x.device().name() + "; take x.cpu() first");
  if (x.requires_grad()) throw AutogradError("numpy: the tensor requires a gradient; take x.detach() first");
  if (x.dtype() == DType::bfloat16) {
    x.storage()->lend();  // never taken back: nothing reports when the array is freed
    return py::module_::import("glade._numpy").attr("bfloat16_array")(x);
  }
  return py::module_::import("numpy").attr("asarray")(x);
}

py::object array(const Tensor& x, const py::object& dtype, const py::object& copy) {
  const py::object result = numpy(x);
  const py::object own_dtype = result.attr("dtype");
  const py::object wanted = dtype.is_none() ? own_dtype : py::module_::import("numpy").attr("dtype")(dtype);
  if (!copy.is_none() && copy.cast<bool>()) return result.attr("astype")(wanted);
  if (wanted.equal(own_dtype)) return result;
  if (!copy.is_none()) throw py::value_error("__array__: another dtype needs a copy");
  return result.attr("astype")(wanted);
}

py::object reduce(const Tensor& x) {
  Tensor host;
  {
    py::gil_scoped_release unlocked;
    host = contiguous_data(to_data(x.detach(), kCPU));
  }
  const py::bytes bytes(static_cast<const char*>(host.raw_data()),
                        static_cast<std::size_t>(host.numel()) * dtype_size(host.dtype()));
  return py::make_tuple(py::module_::import("glade._pickle").attr("restore"),
                        py::make_tuple(bytes, x.shape(), x.dtype(), x.device(), x.requires_grad() && x.is_leaf()));
}

/// What copy.copy gives: the same memory, on a tape of its own.
Tensor shallow_copy(const Tensor& x) {
  Tensor y = x.detach();
  if (x.requires_grad()) y.set_requires_grad();
  return y;
}

Tensor tensor_from_bytes(const py::bytes& bytes, const Shape& shape, DType dtype, const Device& device, bool requires_grad) {
  const std::string_view data = bytes;
  const Tensor host = empty(shape, {dtype, kCPU});
  if (data.size() != static_cast<std::size_t>(host.numel()) * dtype_size(dtype)) throw ValueError("a pickled tensor is damaged");
  std::copy(data.begin(), data.end(), static_cast<char*>(host.raw_data()));
  Tensor x = to_data(host, device);
  if (requires_grad) x.set_requires_grad();
  return x;
}

}  // namespace

void bind_methods(py::module_& module) {
  def_method("item", item,
             "The value of a tensor of one element as a Python number. Waits for the device. ShapeError for other sizes.");
  def_method(
      "tolist", [](const Tensor& x) { return numpy(to_data(x.detach(), kCPU)).attr("tolist")(); },
      "The elements as nested lists of Python numbers. Waits for the device.");
  def_method("numpy", numpy,
             "A NumPy array over the tensor's memory, nothing copied. bfloat16 needs the package ml_dtypes (TypeError without). "
             "DeviceError for a tensor "
             "on a GPU, AutogradError for one that requires a gradient.");
  def_method(
      "__format__",
      [](const Tensor& x, const py::str& spec) -> py::str {
        if (x.ndim() == 0) return item(x).attr("__format__")(spec);
        return py::handle(reinterpret_cast<PyObject*>(&PyBaseObject_Type)).attr("__format__")(x, spec);
      },
      arg("spec"));
  def_method("__array__", array, arg("dtype") = py::none(), arg("copy") = py::none());
  def_method("__reduce__", reduce);
  def_method("__copy__", shallow_copy);
  def_method("is_contiguous", &Tensor::is_contiguous, "Whether the elements lie in memory in row-major order without gaps.");
  def_method(
      "data_ptr", [](const Tensor& x) { return reinterpret_cast<std::uintptr_t>(x.raw_data()); },
      "The address of the first element.");
  def_method("numel", &Tensor::numel, "The number of elements.");
  def_method(
      "size", [](const Tensor& x) { return x.shape(); },
      "The sizes of the dimensions, or the size of one. IndexError if x has no such dimension.");
  def_method("size", &Tensor::size, arg("dim"));
  def_method("dim", &Tensor::ndim, "The number of dimensions.");
  def_method(
      "stride", [](const Tensor& x) { return x.strides(); },
      "The strides of the dimensions in elements, or that of one. IndexError if x has no such dimension.");
  def_method(
      "stride", [](const Tensor& x, std::int64_t dim) { return x.strides()[normalize_dim(dim, x.ndim(), "stride")]; },
      arg("dim"));
  def_method("storage_offset", &Tensor::offset, "Where in the storage, which views share, the first element is: in elements.");
  def_method("element_size", [](const Tensor& x) { return dtype_size(x.dtype()); }, "Bytes of one element.");
  def_method(
      "is_floating_point", [](const Tensor& x) { return is_floating(x.dtype()); }, "Whether the dtype is one of floating point.");
  def_method("is_same", &Tensor::is_same, arg("other"), "Whether both are the same tensor, not only equal ones.");
  module.def("_tensor_from_bytes", tensor_from_bytes);
}

}  // namespace glade::python
