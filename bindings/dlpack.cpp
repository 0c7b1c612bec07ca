// DLPack, the array API standard's way to hand memory from one library to another, in its first and its versioned form.
#include <memory>

#include <glade/core/graph.h>
#include <glade/core/stream.h>
#include <glade/ops/elementwise/elementwise.h>

#include "dlpack.h"
#include "python.h"

namespace glade::python {

namespace {

using dlpack::ManagedTensor;
using dlpack::ManagedTensorVersioned;

constexpr const char* kName = "dltensor";
constexpr const char* kNameVersioned = "dltensor_versioned";

dlpack::DataType to_dlpack(DType dtype) {
  const auto bits = static_cast<std::uint8_t>(8 * dtype_size(dtype));
  switch (dtype) {
    case DType::float64:
    case DType::float32:
    case DType::float16: return {dlpack::kFloat, bits, 1};
    case DType::bfloat16: return {dlpack::kBfloat, bits, 1};
    case DType::int64:
    case DType::int32: return {dlpack::kInt, bits, 1};
    case DType::uint8: return {dlpack::kUInt, bits, 1};
    case DType::boolean: return {dlpack::kBool, bits, 1};
  }
  return {};
}

DType from_dlpack_type(dlpack::DataType type) {
  for (int i = 0; i < 8; ++i) {
    const dlpack::DataType candidate = to_dlpack(static_cast<DType>(i));
    if (type.code == candidate.code && type.bits == candidate.bits && type.lanes == 1) return static_cast<DType>(i);
  }
  throw DTypeError("from_dlpack: the array's type (DLPack code " + std::to_string(type.code) + ", " + std::to_string(type.bits) +
                   " bits) has no counterpart in glade");
}

Device from_dlpack_device(int type, int index) {
  if (type == dlpack::kCPU || type == dlpack::kCUDAHost) return kCPU;
  if (type != dlpack::kCUDA)
    throw DeviceError("from_dlpack: DLPack device type " + std::to_string(type) + " is neither cpu nor cuda");
  return {DeviceType::cuda, index};
}

// ---- out -----------------------------------------------------------------------------------------------------------

/// A tensor lent to another library, with the stream it is used on there.
struct Lent {
  Tensor tensor;
  std::optional<Stream> stream;
  std::vector<std::int64_t> shape, strides;
};

void take_back(Lent* lent) {
  try {  // the memory may be reused when the other library's work on it is done
    if (lent->stream && !cuda::is_capturing()) current_stream(lent->stream->device).wait(*lent->stream);
  } catch (const Error&) {  // at the end of the process CUDA may be gone before us
  }
  lent->tensor.storage()->take_back();
  delete lent;
}

template <class Managed>
PyObject* lend(const Tensor& x, std::optional<Stream> stream, const char* capsule_name) {
  auto lent = std::make_unique<Lent>();
  lent->tensor = x.detach();
  lent->tensor.storage()->lend();
  lent->stream = stream;
  lent->shape.assign(x.shape().begin(), x.shape().end());
  lent->strides.assign(x.strides().begin(), x.strides().end());
  auto managed = std::make_unique<Managed>();
  dlpack::Array& array = managed->array;
  array.data = x.raw_data();
  array.device_type = x.is_cpu() ? dlpack::kCPU : dlpack::kCUDA;
  array.device_id = x.device().index;
  array.ndim = x.ndim();
  array.dtype = to_dlpack(x.dtype());
  array.shape = lent->shape.data();
  array.strides = lent->strides.data();
  array.byte_offset = 0;
  managed->context = lent.release();
  managed->deleter = [](Managed* self) {
    take_back(static_cast<Lent*>(self->context));
    delete self;
  };
  // A consumer renames the capsule; one that nobody took still owns the tensor.
  PyObject* capsule = PyCapsule_New(managed.get(), capsule_name, [](PyObject* object) {
    const char* name = PyCapsule_GetName(object);
    if (std::string_view(name) != kName && std::string_view(name) != kNameVersioned) return;
    auto* owned = static_cast<Managed*>(PyCapsule_GetPointer(object, name));
    owned->deleter(owned);
  });
  if (capsule == nullptr) {
    managed->deleter(managed.release());
    throw py::error_already_set();
  }
  static_cast<void>(managed.release());
  return capsule;
}

/// The consumer's stream, from the number that it gives by the array API standard; none where it asks for no order.
std::optional<Stream> consumer_stream(const Device& device, const std::optional<std::int64_t>& number) {
  if (device.is_cpu() || (number && *number == -1)) return std::nullopt;
  if (number && *number == 0)
    throw ValueError("__dlpack__: stream 0 is ambiguous; 1 is the default stream, 2 the per-thread default stream");
  return Stream{device.index, number ? reinterpret_cast<void*>(*number) : nullptr};
}

py::object to_capsule(const Tensor& x, const std::optional<std::int64_t>& stream,
                      const std::optional<std::pair<int, int>>& max_version, const std::optional<std::pair<int, int>>& dl_device,
                      const std::optional<bool>& copy) {
  if (x.requires_grad()) throw py::buffer_error("__dlpack__: the tensor requires a gradient: take x.detach() first");
  Tensor source = copy.value_or(false) ? clone(x) : x;
  if (dl_device) {
    const Device wanted = from_dlpack_device(dl_device->first, dl_device->second);
    if (!(wanted == x.device())) {
      if (copy && !*copy)
        throw py::buffer_error("__dlpack__: the tensor is on " + x.device().name() + ", and " + wanted.name() + " needs a copy");
      source = to_data(x, wanted);
    }
  }
  const std::optional<Stream> consumer = consumer_stream(source.device(), stream);
  if (consumer) consumer->wait(current_stream(consumer->device));
  PyObject* capsule = max_version && max_version->first >= 1 ? lend<ManagedTensorVersioned>(source, consumer, kNameVersioned)
                                                             : lend<ManagedTensor>(source, consumer, kName);
  return py::reinterpret_steal<py::object>(capsule);
}

// ---- in ------------------------------------------------------------------------------------------------------------

template <class Managed>
Tensor borrow(Managed* managed) {
  const dlpack::Array& array = managed->array;
  const TensorOptions options{from_dlpack_type(array.dtype), from_dlpack_device(array.device_type, array.device_id)};
  Shape shape, strides;
  for (int d = 0; d < array.ndim; ++d) shape.push_back(array.shape[d]);
  strides = shape.contiguous_strides();
  std::int64_t span = 1;
  for (int d = 0; d < array.ndim; ++d) {
    if (array.strides != nullptr) strides[d] = array.strides[d];
    if (strides[d] < 0) throw ValueError("from_dlpack: the array has a negative stride; copy it first");
    span += (shape[d] - 1) * strides[d];
  }
  if (shape.numel() == 0) {
    if (managed->deleter != nullptr) managed->deleter(managed);
    return empty(shape, options);
  }
  char* data = static_cast<char*>(array.data) + array.byte_offset;
  if (reinterpret_cast<std::uintptr_t>(data) % dtype_size(options.dtype) != 0)
    throw ValueError("from_dlpack: the array's elements do not lie at multiples of their size; copy it first");
  auto release = [managed, device = options.device] {
    if (device.is_cuda() &&
        !cuda::is_capturing()) {  // the owner may reuse the memory on the default stream, when our work on it is done
      const Stream ours = current_stream(device.index);
      if (ours.handle != nullptr) Stream{device.index, nullptr}.wait(ours);
    }
    if (managed->deleter != nullptr && Py_IsInitialized()) managed->deleter(managed);
  };
  const Tensor x = Tensor::from_blob(data, {span}, options, std::move(release));
  x.storage()->lend();  // never taken back: the array's owner may write to it at any time
  return x.as_strided(shape, strides, 0);
}

template <class Managed>
Tensor borrow_from(const py::object& capsule, const char* name, const char* used_name) {
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (managed == nullptr) throw py::error_already_set();
  bool is_read_only = false;
  if constexpr (std::is_same_v<Managed, ManagedTensorVersioned>) is_read_only = (managed->flags & dlpack::kReadOnly) != 0;
  const Tensor x = borrow(managed);  // throws before it takes the memory over
  PyCapsule_SetName(capsule.ptr(), used_name);
  return is_read_only ? clone(x) : x;
}

}  // namespace

Tensor from_dlpack(py::handle array) {
  const auto where = array.attr("__dlpack_device__")().cast<std::pair<int, int>>();
  const Device device = from_dlpack_device(where.first, where.second);
  py::object stream = py::none();
  if (device.is_cuda()) {
    cuda::check_device(device.index);
    void* handle = current_stream(device.index).handle;
    stream = py::int_(handle == nullptr ? std::intptr_t{1} : reinterpret_cast<std::intptr_t>(handle));
  }
  const py::object method = array.attr("__dlpack__");
  py::object capsule;
  try {
    capsule = method(py::arg("stream") = stream, py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = method(py::arg("stream") = stream);  // from before max_version
  }
  return PyCapsule_IsValid(capsule.ptr(), kNameVersioned)
             ? borrow_from<ManagedTensorVersioned>(capsule, kNameVersioned, "used_dltensor_versioned")
             : borrow_from<ManagedTensor>(capsule, kName, "used_dltensor");
}

void bind_dlpack(py::module_& module) {
  module.def(
      "from_dlpack", [](const py::object& array) { return is_tensor(array.ptr()) ? tensor_of(array.ptr()) : from_dlpack(array); },
      py::arg("array"),
      "A tensor over the memory of any array with DLPack (NumPy, PyTorch, CuPy, JAX, ...), on the CPU or a CUDA device; only "
      "what "
      "its owner calls read-only is copied, there.\n\nOn CUDA, work on the array that is already queued comes before work on the "
      "tensor. DTypeError for an "
      "element "
      "type that glade lacks, DeviceError for another kind of device, ValueError for negative strides and for "
      "elements at addresses that are no multiples of their size.");
  def_method("__dlpack__", to_capsule, py::kw_only(), py::arg("stream") = py::none(), py::arg("max_version") = py::none(),
             py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
             "A DLPack capsule over the tensor's memory. `stream` is the consumer's CUDA stream by the array API standard: its "
             "work waits "
             "for glade's. BufferError where the tensor requires a gradient.");
  def_method(
      "__dlpack_device__",
      [](const Tensor& x) { return std::pair(static_cast<int>(x.is_cpu() ? dlpack::kCPU : dlpack::kCUDA), x.device().index); },
      "DLPack's device type (1 cpu, 2 cuda) and the device's number.");
}

}  // namespace glade::python
