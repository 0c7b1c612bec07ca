// glade.save and glade.load: HDF5 checkpoints.
#include <glade/nn/checkpoint.h>

#include "python.h"

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

void save(const std::variant<const Module*, StateDict>& model, const py::object& path, const optim::Optimizer* optimizer,
          const optim::LRScheduler* scheduler, std::int64_t step, const std::optional<std::string>& config, const StateDict& data,
          int compression, bool checksums) {
  Checkpoint checkpoint;
  checkpoint.step = step;
  if (const auto* module = std::get_if<const Module*>(&model)) {
    checkpoint.model = (*module)->state_dict();
    const py::object self = py::cast(*module);
    checkpoint.config = config ? *config : py::getattr(self, "config_json", py::str()).cast<std::string>();
  } else {
    checkpoint.model = std::get<StateDict>(model);
    checkpoint.config = config.value_or("");
  }
  if (optimizer != nullptr) checkpoint.optimizer = optimizer->state_dict();
  if (scheduler != nullptr) checkpoint.scheduler = scheduler->state_dict();
  checkpoint.data = data;
  checkpoint.random["default"] = default_generator().state();
  const std::string name = py::str(py::module_::import("os").attr("fspath")(path));
  const py::gil_scoped_release unlocked;
  save_checkpoint(name, checkpoint, {compression, checksums});
}

Checkpoint load(const py::object& path) {
  const std::string name = py::str(py::module_::import("os").attr("fspath")(path));
  const py::gil_scoped_release unlocked;
  return load_checkpoint(name);
}

void restore_all(const Checkpoint& checkpoint, Module& model, optim::Optimizer* optimizer, optim::LRScheduler* scheduler) {
  restore(checkpoint, model, optimizer, scheduler);
  if (const auto found = checkpoint.random.find("default"); found != checkpoint.random.end())
    default_generator().set_state(found->second);
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  py::class_<Checkpoint>(module, "Checkpoint", "What a checkpoint file holds; tensors on the CPU.")
      .def_readonly("step", &Checkpoint::step, "The step after which it was saved.")
      .def_readonly("config_json", &Checkpoint::config, "The model's configuration as JSON, or \"\".")
      .def_property_readonly(
          "config",
          [](const Checkpoint& self) -> py::object {
            return self.config.empty() ? py::none() : py::module_::import("json").attr("loads")(self.config);
          },
          "The model's configuration, a dict, or None.")
      .def_readonly("model", &Checkpoint::model, "The model's state_dict.")
      .def_readonly("optimizer", &Checkpoint::optimizer, "The optimiser's state_dict; empty where none was saved.")
      .def_readonly("scheduler", &Checkpoint::scheduler, "The schedule's state_dict; empty where none was saved.")
      .def_readonly("data", &Checkpoint::data, "Tensors of the training program's own.")
      .def_readonly("path", &Checkpoint::path, "The file it was read from.")
      .def_readonly("created", &Checkpoint::created, "When it was written.")
      .def_readonly("library_version", &Checkpoint::library_version, "The version of glade that wrote it.")
      .def("restore", restore_all, arg("model"), arg("optimizer") = py::none(), arg("scheduler") = py::none(), Unlocked(),
           "Copies the values into a model and, where given, the optimiser and the schedule, and sets the random generator's "
           "state. CheckpointError "
           "that lists all entries that do not fit; nothing is changed then.");
  module.def("save", save, arg("model"), arg("path"), py::kw_only(), arg("optimizer") = py::none(), arg("scheduler") = py::none(),
             arg("step") = 0, arg("config") = py::none(), arg("data") = StateDict{}, arg("compression") = 0,
             arg("checksums") = true,
             "Writes an HDF5 checkpoint: a model, or tensors by name, and where given the optimiser and the schedule, with the "
             "random generator's "
             "state.\n\n`config` is JSON, by default that of a language model; `data` are tensors of the training program's own; "
             "compression is a gzip "
             "level from 1 to 9, or 0. At any instant the file is the old one or the new one, whole. CheckpointError naming the "
             "file, the entry and the cause.");
  module.def("load", load, arg("path"),
             "Reads a file that glade.save or train_lm wrote: a Checkpoint. CheckpointError naming the file, the entry and the "
             "cause: missing, not HDF5, "
             "truncated, damaged, no glade checkpoint, another format version.");
}

}  // namespace glade::python
