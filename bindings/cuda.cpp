// glade.cuda: the devices, their memory, streams and graphs.
#include <pybind11/functional.h>

#include <map>

#include <glade/core/graph.h>
#include <glade/core/graphed_function.h>
#include <glade/core/memory.h>
#include <glade/core/stream.h>

#include "python.h"

namespace glade::python {

namespace {

using py::arg;

std::map<std::string, std::size_t> memory_stats(int device) {
  const cuda::MemoryStats stats = cuda::memory_stats(device);
  return {{"allocated", stats.allocated}, {"peak_allocated", stats.peak_allocated}, {"reserved", stats.reserved}};
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
  devices.def(
      "memory_summary",
      [](int device, const std::map<std::string, Tensors>& categories) {
        return cuda::memory_summary(device, {categories.begin(), categories.end()});
      },
      arg("device") = 0, arg("categories") = std::map<std::string, Tensors>(),
      "A table of where a GPU's memory is, in MiB: live tensors, of them those of each category ({\"parameters\": "
      "model.parameters()}), the most that was live, what the pool holds and what is free. DeviceError without a GPU.");
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

  py::class_<cuda::Graph>(
      devices, "Graph",
      "A recording of work on a GPU, which replay() runs again at the price of one launch:\n\n"
      "    graph = glade.cuda.Graph()\n"
      "    with graph:            # records, runs nothing\n"
      "        y = f(x)\n"
      "    x[:] = new_values      # in the same memory\n"
      "    graph.replay()         # now y holds f(new_values)\n\n"
      "Every replay reads and writes the memory that the capture saw, and numbers of the host (a scale, the branch of an if) are "
      "those of the capture. The graph keeps all memory that was allocated or let go of inside; other tensors that it reads must "
      "live as long as it is replayed. A capture belongs to its thread. CudaError for what cannot be captured: reading values, "
      "copies between the GPU and memory that is not pinned, waiting. Run what is captured once before. Random numbers and the "
      "steps "
      "of AdamW go on in replays as they would eagerly.")
      .def(py::init<int>(), arg("device") = 0, "An empty graph. DeviceError without a GPU.")
      .def(
          "__enter__",
          [](const py::object& self) {
            self.cast<cuda::Graph&>().begin_capture();
            return self;
          },
          "Begins to record, in place of what was recorded before.")
      .def(
          "__exit__",
          [](cuda::Graph& self, const py::object& type, const py::object&, const py::object&) {
            if (type.is_none()) self.end_capture();
            else self.abandon_capture();
          },
          arg("type"), arg("value"), arg("traceback"), "Ends the recording; after an exception the graph is empty.")
      .def_property_readonly("is_captured", &cuda::Graph::is_captured, "Whether there is something to replay.")
      .def("replay", &cuda::Graph::replay, Unlocked(),
           "Queues the recorded work on this thread's current stream. CudaError for an empty graph.");
  py::class_<GraphedFunction>(devices, "GraphedFunction", "The part of cuda.GraphedFunction in C++.")
      .def(py::init<Device, std::function<Tensors(const Tensors&)>>(), arg("device"), arg("function"))
      .def("__call__", &GraphedFunction::operator(), arg("arguments"), Unlocked(),
           "The function's results, as tensors that later calls leave alone. The arguments are copied to the device.")
      .def_property_readonly("is_replaying", &GraphedFunction::is_replaying, "Whether the last call was a replay.");
  devices.def("is_capturing", &cuda::is_capturing, "Whether this thread is recording a graph.");
}

}  // namespace glade::python
