// glade.distributed: processes that compute together, collectives, data parallel training.
#include <glade/core/process_group.h>
#include <glade/nn/distributed/data_parallel.h>
#include <glade/nn/distributed/saver.h>
#include <glade/nn/optim/loss_scaler.h>
#include <glade/ops/collective/collective.h>
#include <glade/ops/collective/sequence_parallel.h>

#include <pybind11/stl/filesystem.h>

#include "python.h"

namespace glade::python {

namespace {

using nn::distributed::DataParallel;
using py::arg;

ReduceOp op_from(const std::string& name) {
  if (name == "sum") return ReduceOp::sum;
  if (name == "average") return ReduceOp::average;
  if (name == "max") return ReduceOp::max;
  if (name == "min") return ReduceOp::min;
  throw ValueError("op is '" + name + "', expected sum, average, max or min");
}

/// None stands for all processes.
ProcessGroup or_world(const std::optional<ProcessGroup>& group) { return group ? *group : ProcessGroup::world(); }

void bind_group(py::module_& distributed) {
  py::class_<ProcessGroup>(distributed, "ProcessGroup",
                           "Processes that a launcher started together. A program that was started alone is a group of one, for "
                           "which neither MPI nor NCCL is loaded.")
      .def_property_readonly("rank", &ProcessGroup::rank, "The number of this process in the group.")
      .def_property_readonly("size", &ProcessGroup::size, "The number of processes.")
      .def_property_readonly("local_rank", &ProcessGroup::local_rank,
                             "The number of this process among all that run on this host.")
      .def_property_readonly("local_size", &ProcessGroup::local_size, "The number of all processes that run on this host.")
      .def(
          "device", &ProcessGroup::device, arg("name") = "auto",
          "The device for this process: for \"auto\" and \"cuda\" a GPU of its own where there are GPUs. DeviceError where fewer "
          "GPUs than processes are to be seen.")
      .def("share", &ProcessGroup::share, arg("total"),
           "The part of `total` things, begin and end, that is this rank's: parts follow one another in the order of the ranks, "
           "and "
           "their sizes differ by at most one.")
      .def("split", &ProcessGroup::split, arg("color"), arg("key") = 0, Unlocked(),
           "The groups of those ranks that give the same color, ordered by key, then by rank. All ranks call it.")
      .def("barrier", &ProcessGroup::barrier, Unlocked(), "Waits until all ranks have come here.")
      .def(
          "broadcast_text",
          [](const ProcessGroup& self, const std::string& text, int root) { return self.broadcast(text, root); }, arg("text"),
          arg("root") = 0, Unlocked(), "Rank root's text, on all ranks.");
  distributed.def("_world", &ProcessGroup::world, Unlocked());
  distributed.def("shutdown", &ProcessGroup::shutdown, Unlocked(),
                  "To be called by every process at the end of the program: waits for all of them and disconnects.");
}

void bind_collectives(py::module_& distributed) {
  using Group = std::optional<ProcessGroup>;
  const auto group = arg("group") = py::none();
  distributed.def(
      "all_reduce",
      [](const Tensor& x, const std::string& op, const Group& g) { return all_reduce(x, op_from(op), or_world(g)); }, arg("x"),
      arg("op") = "sum", py::kw_only(), group, Unlocked(),
      "The sum or the average of the ranks' x; with op \"max\" or \"min\" the largest or smallest of each element, without a "
      "gradient.");
  distributed.def(
      "broadcast", [](const Tensor& x, int root, const Group& g) { return broadcast(x, root, or_world(g)); }, arg("x"),
      arg("root") = 0, py::kw_only(), group, Unlocked(), "Rank root's x, on all ranks.");
  distributed.def(
      "all_gather", [](const Tensor& x, const Group& g) { return all_gather(x, or_world(g)); }, arg("x"), py::kw_only(), group,
      Unlocked(), "The ranks' x [n, ...] one after the other: [size * n, ...].");
  distributed.def(
      "reduce_scatter",
      [](const Tensor& x, const std::string& op, const Group& g) { return reduce_scatter(x, op_from(op), or_world(g)); },
      arg("x"), arg("op") = "sum", py::kw_only(), group, Unlocked(),
      "x [size * n, ...] is reduced, and rank i gets its rows i * n to (i + 1) * n. ShapeError for rows that do not divide.");
  distributed.def(
      "all_to_all", [](const Tensor& x, const Group& g) { return all_to_all(x, or_world(g)); }, arg("x"), py::kw_only(), group,
      Unlocked(),
      "Rank i gets the rows i * n to (i + 1) * n of every rank's x [size * n, ...], in the order of the ranks. ShapeError for "
      "rows "
      "that do not divide.");
  distributed.def(
      "send", [](const Tensor& x, int to, const Group& g) { return send(x, to, or_world(g)); }, arg("x"), arg("to"),
      py::kw_only(), group, Unlocked(),
      "Sends x to another rank. The result is a zero that stands for what that rank computes from x: add it to the loss, or call "
      "its "
      "backward(), so that backward comes here and receives the gradient.");
  distributed.def(
      "recv",
      [](const Shape& shape, int source, DType dtype, Device device, const Group& g) {
        return recv(shape, {dtype, device}, source, or_world(g));
      },
      arg("shape"), arg("source"), py::kw_only(), arg("dtype") = DType::float32, arg("device") = kCPU, group, Unlocked(),
      "Receives a tensor from rank `source`. It requires a gradient, which backward sends back, where the sender's tensor does.");
  distributed.def(
      "share_sequences", &share_sequences, arg("cu_seqlens"), arg("tokens"),
      "The part of cu_seqlens [N + 1] of packed sequences for the tokens (begin, end), counted from begin: what models whose "
      "sequence group shares out these tokens take. The first number is negative where the first sequence begins earlier, "
      "the last one larger than end - begin where the last sequence goes on.");
}

/// This rank's part of a parameter, or of a pair of a name and a parameter.
py::object divide(const DataParallel& self, const py::handle& item) {
  const bool is_named = py::isinstance<py::tuple>(item);
  const auto name = is_named ? item.cast<py::tuple>()[0].cast<std::string>() : std::string("a parameter");
  const Tensor x = is_named ? item.cast<py::tuple>()[1].cast<Tensor>() : item.cast<Tensor>();
  const Tensor part = self.divide({{.parameters = {{name, x}}}})[0].parameters[0].second;
  return is_named ? py::object(py::make_tuple(name, part)) : py::cast(part);
}

py::list divide_groups(const DataParallel& self, const py::iterable& parameters) {
  const py::list given(parameters);
  const bool are_groups = !given.empty() && py::isinstance<py::dict>(given[0]);
  py::list groups;
  if (are_groups) groups = given;
  else groups.append(py::dict(arg("params") = given));
  py::list result;
  for (const py::handle item : groups) {
    const py::dict group(item.attr("copy")());
    py::list parts;
    for (const py::handle x : group["params"]) parts.append(divide(self, x));
    group["params"] = parts;
    if (self.shard() > 0) group["ranks"] = self.group();
    result.append(group);
  }
  return result;
}

void bind_data_parallel(py::module_& distributed) {
  py::class_<DataParallel>(
      distributed, "DataParallel",
      "Averages the gradients of a model's parameters over the ranks of a group while backward runs. All ranks begin with rank "
      "0's "
      "weights, buffers and random state. In a group of one nothing is done.\n\n"
      "`shard` is what the ranks divide among them: 0 nothing, 1 the optimizer's state, 2 the gradients too, 3 the parameters "
      "too. "
      "The optimizer is made of what divide() returns, and step() makes its step:\n\n"
      "    parallel = distributed.DataParallel(model, shard=2)\n"
      "    optimizer = optim.AdamW(parallel.divide(model.named_parameters()))\n"
      "    ...\n"
      "    parallel.step(optimizer, max_norm=1)\n\n"
      "The gradients of the model's own parameters are None then. With 3 their values are there while forward or backward needs "
      "them, else they are NaN. ValueError for another shard, and for 3 where the model is no language model of glade.nn.models.")
      .def(
          py::init([](nn::Module& model, const std::optional<ProcessGroup>& group, int shard,
                      std::optional<std::size_t> bucket_bytes, std::optional<DType> reduce_dtype, bool copy_engines,
                      std::optional<int> max_ctas) {
            return std::make_unique<DataParallel>(
                model, or_world(group),
                nn::distributed::DataParallelOptions{shard, bucket_bytes, reduce_dtype, copy_engines, max_ctas});
          }),
          arg("model"), py::kw_only(), arg("group") = py::none(), arg("shard") = 0, arg("bucket_bytes") = py::none(),
          arg("reduce_dtype") = py::none(), arg("copy_engines") = true, arg("max_ctas") = py::none(), Unlocked(),
          py::keep_alive<1, 2>(),
          "A collective starts when bucket_bytes of gradients are final (None: 25 MB, or 64 MB for copies with shard 0). They "
          "travel in reduce_dtype, or as they are: \"bfloat16\" halves the bytes of float32, and rounds every gradient and their "
          "sum. copy_engines: whether the GPUs of one host average gradients by their copy engines, where NCCL has that (2.28), "
          "which leaves all multiprocessors to the pass. max_ctas is the number of NCCL's thread blocks for what runs beside a "
          "pass: the fewer, the less they slow the pass, and the longer they take; 0 lets NCCL choose. "
          "None: 8 with shard 0, else 0.")
      .def(
          "wait", [](DataParallel& self, const Tensors& more) { self.wait(more); }, arg("more") = Tensors(), Unlocked(),
          "After backward: waits until the gradients are averages (on a GPU the current stream waits). Averages the tensors of "
          "`more` in place, with the last gradients.")
      .def("divide", divide_groups, arg("params"),
           "This rank's parts [n] of parameters, as groups for an optimizer. `params` are what optimizers take. ValueError for "
           "one "
           "that is not the model's.")
      .def(
          "step",
          [](DataParallel& self, nn::optim::Optimizer& optimizer, double max_norm, nn::optim::LossScaler* scaler) {
            const Tensor norm = self.step(optimizer, {.max_norm = max_norm, .scaler = scaler});
            return norm.defined() ? std::optional(norm) : std::nullopt;
          },
          arg("optimizer"), py::kw_only(), arg("max_norm") = 0.0, arg("scaler") = py::none(), Unlocked(),
          "The optimizer's step, as its own step(), after which every rank has the new parameters. ValueError for an optimizer "
          "that "
          "was not made with divide() where something is divided.")
      .def(
          "restore",
          [](const DataParallel& self, const nn::CheckpointFile& file, nn::optim::Optimizer& optimizer,
             nn::optim::LRScheduler* scheduler) { nn::distributed::restore(file, self, optimizer, scheduler); },
          arg("file"), arg("optimizer"), arg("scheduler") = py::none(), Unlocked(),
          "Copies the state of an optimizer that was made with divide(), and of the schedule where given, out of a "
          "glade.CheckpointFile "
          "of any number of ranks. The model is restored before DataParallel is made. CheckpointError that lists all entries "
          "that do "
          "not fit; nothing is changed then.")
      .def("gather_parameters", &DataParallel::gather_parameters, Unlocked(),
           "Gives the parameters of shard 3 their values, on all ranks, until the next pass or step.")
      .def_property_readonly("shard", &DataParallel::shard, "What is divided; 0 in a group of one.")
      .def_property_readonly("gathered_bytes", &DataParallel::gathered_bytes,
                             "The memory of this rank that holds gathered parameters of shard 3 now.")
      .def_property("communicating", &DataParallel::is_communicating, &DataParallel::set_communicating,
                    "Whether backward communicates: not for all but the last of several batches whose gradients add up. Shards 2 "
                    "and 3 communicate in any case.");
}

void save(nn::distributed::Saver& self, const nn::Module& model, const nn::optim::Optimizer& optimizer,
          const nn::optim::LRScheduler* scheduler, std::int64_t step, const nn::StateDict& data) {
  nn::Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.config = py::getattr(py::cast(&model), "config_json", py::str()).cast<std::string>();
  if (scheduler != nullptr) checkpoint.scheduler = scheduler->state_dict();
  checkpoint.data = data;
  checkpoint.random["default"] = default_generator().state();
  const py::gil_scoped_release unlocked;
  self.save(checkpoint, model, optimizer);
}

void bind_saver(py::module_& distributed) {
  using nn::distributed::Saver;
  py::class_<Saver>(
      distributed, "Saver",
      "Saves checkpoints of a model that several ranks train, in the background. The file is what one rank alone "
      "would write, and any number of ranks can go on from it. All ranks make one and call its methods; the rest is "
      "as for glade.CheckpointSaver.")
      .def(py::init(
               [](const DataParallel& parallel, const std::filesystem::path& path, int keep, int compression, bool checksums) {
                 return std::make_unique<Saver>(parallel, path.string(), keep, nn::CheckpointOptions{compression, checksums});
               }),
           arg("parallel"), arg("path"), arg("keep") = 0, py::kw_only(), arg("compression") = 0, arg("checksums") = true,
           Unlocked(), py::keep_alive<1, 2>())
      .def("save", save, arg("model"), arg("optimizer"), arg("scheduler") = py::none(), py::kw_only(), arg("step") = 0,
           arg("data") = nn::StateDict{},
           "Copies what this rank alone has and returns, while rank 0 writes the file. Waits for the save before and raises its "
           "error.")
      .def("check", &Saver::check, Unlocked(),
           "Raises the error of a save that has failed meanwhile. Does not wait: for every step.")
      .def("wait", &Saver::wait, Unlocked(), "Waits until everything is on the disk, or raises. Before shutdown().")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](Saver& self, const py::args&) {
        const py::gil_scoped_release unlocked;
        self.wait();
      });
}

}  // namespace

void bind_distributed(py::module_& module) {
  py::module_ distributed = public_submodule(module, "_distributed", "glade.distributed");
  bind_group(distributed);
  bind_collectives(distributed);
  bind_data_parallel(distributed);
  bind_saver(distributed);
}

}  // namespace glade::python
