// glade.cuda: the devices, their memory and streams.
#include <glade/core/stream.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;

py::dict memory_stats(int device) {
  const cuda::MemoryStats stats = cuda::memory_stats(device);
  py::dict result;
  result["allocated"] = stats.allocated;
  result["peak_allocated"] = stats.peak_allocated;
  result["reserved"] = stats.reserved;
  return result;
}

}  // namespace

void bind_cuda(py::module_& module) {
  py::module_ devices = public_submodule(module, "_cuda", "glade.cuda");
  devices.def("is_built", &cuda::is_built, "Whether glade was built with CUDA.");
  devices.def("is_available", &cuda::is_available, "Whether a CUDA device can be used.");
  devices.def("device_count", &cuda::device_count, "The number of CUDA devices that can be used.");
  devices.def("synchronize", &cuda::synchronize, arg("device") = 0, Unlocked(),
              "Waits for all work queued on every stream of the device.");
  devices.def("memory_stats", memory_stats, arg("device") = 0,
              "Bytes in live tensors (allocated), the most there were since the last reset (peak_allocated), and held from the "
              "driver (reserved).");
  devices.def("reset_peak_memory_stats", &cuda::reset_peak_memory_stats, arg("device") = 0, "Starts peak_allocated anew.");
  devices.def("empty_cache", &cuda::empty_cache, arg("device") = 0, Unlocked(), "Gives unused memory back to the driver.");

  py::class_<Stream>(devices, "Stream",
                     "A queue of work on a device. Memory of a tensor that is used on a stream other than where it was made must "
                     "be kept until that stream's "
                     "work is done, or one must wait for the other.")
      .def(py::init([](int device) { return Stream::create(device); }), arg("device") = 0,
           "A new stream. DeviceError without a GPU.")
      .def_readonly("device", &Stream::device, "The device's number.")
      .def_property_readonly(
          "handle", [](const Stream& s) { return reinterpret_cast<std::uintptr_t>(s.handle); },
          "The cudaStream_t as an integer; 0 is the default stream.")
      .def("synchronize", &Stream::synchronize, Unlocked(), "Waits until all work queued on the stream is done.")
      .def("wait", &Stream::wait, arg("other"), "Lets work queued from now on wait for what is queued on `other` now.");
  devices.def("current_stream", &current_stream, arg("device") = 0, "This thread's stream of the device.");
  py::class_<StreamGuard>(devices, "_StreamGuard").def(py::init<Stream>());
}

}  // namespace glade::python
