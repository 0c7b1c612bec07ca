// HDF5 files: glade's checkpoints and those of other programs.
#include <glade/nn/checkpoint_saver.h>

#include <pybind11/stl/filesystem.h>

#include <variant>

#include "python.h"

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

using Path = std::filesystem::path;
using RandomStates = std::map<std::string, std::pair<std::uint64_t, std::uint64_t>>;

// ---- saving ----------------------------------------------------------------------------------------------------------

Checkpoint make_checkpoint(const std::variant<const Module*, StateDict>& model, const optim::Optimizer* optimizer,
                           const optim::LRScheduler* scheduler, std::int64_t step, const std::optional<std::string>& config,
                           const StateDict& data) {
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
  return checkpoint;
}

void save(const std::variant<const Module*, StateDict>& model, const Path& path, const optim::Optimizer* optimizer,
          const optim::LRScheduler* scheduler, std::int64_t step, const std::optional<std::string>& config, const StateDict& data,
          int compression, bool checksums) {
  const Checkpoint checkpoint = make_checkpoint(model, optimizer, scheduler, step, config, data);
  const py::gil_scoped_release unlocked;
  nn::save(checkpoint, path.string(), {compression, checksums});
}

void save_in_background(CheckpointSaver& self, const std::variant<const Module*, StateDict>& model,
                        const optim::Optimizer* optimizer, const optim::LRScheduler* scheduler, std::int64_t step,
                        const std::optional<std::string>& config, const StateDict& data) {
  const Checkpoint checkpoint = make_checkpoint(model, optimizer, scheduler, step, config, data);
  const py::gil_scoped_release unlocked;
  self.save(checkpoint);
}

// ---- loading ---------------------------------------------------------------------------------------------------------

void set_random_state(const Checkpoint& header) {
  if (const auto found = header.random.find("default"); found != header.random.end())
    default_generator().set_state(found->second);
}

py::object load(const Path& path) {
  const auto read = [&]() -> std::variant<Checkpoint, StateDict> {
    const py::gil_scoped_release unlocked;
    const HDF5File file(path.string());
    if (!is_checkpoint(file)) return file.load();
    return nn::load(path.string());
  };
  return py::cast(read());
}

LoadOptions load_options(const std::vector<std::string>& include, const py::dict& rename, Device device,
                         std::optional<DType> dtype) {
  LoadOptions options{include, {}, device, dtype};
  for (const auto& [from, to] : rename) options.rename.emplace_back(from.cast<std::string>(), to.cast<std::string>());
  return options;
}

StateDict load_part(const HDF5File& self, const std::string& prefix, const std::vector<std::string>& include,
                    const py::dict& rename, Device device, std::optional<DType> dtype) {
  const LoadOptions options = load_options(include, rename, device, dtype);
  const py::gil_scoped_release unlocked;
  return self.load(prefix, options);
}

StateDict load_state_dict(const Path& path, const std::string& prefix, const std::vector<std::string>& include,
                          const py::dict& rename, Device device, std::optional<DType> dtype) {
  const LoadOptions options = load_options(include, rename, device, dtype);
  const py::gil_scoped_release unlocked;
  return load_state_dict_hdf5(path.string(), prefix, options);
}

std::optional<CheckpointFile> open_newest(const Path& path) {
  const auto warn = [](const std::string& message) {
    const py::gil_scoped_acquire locked;
    if (PyErr_WarnEx(PyExc_RuntimeWarning, ("passing over a damaged checkpoint: " + message).c_str(), 1) != 0)
      throw py::error_already_set();
  };
  const py::gil_scoped_release unlocked;
  return open_newest_checkpoint(path.string(), warn);
}

// ---- classes ---------------------------------------------------------------------------------------------------------

/// The properties that a Checkpoint and an open file share; `header` gives an object's Checkpoint.
template <class T, class F>
void def_header(py::class_<T>& type, F header) {
  const auto property = [&](const char* name, auto field, const char* doc) {
    type.def_property_readonly(name, [header, field](const T& self) { return header(self).*field; }, doc);
  };
  type.def("__repr__", [header](const py::object& self) {
    const Checkpoint& x = header(self.cast<const T&>());
    std::string text = std::string(py::str(py::type::of(self).attr("__name__"))) + "(step=" + std::to_string(x.step);
    const auto add = [&](const char* part, const StateDict& state) {
      if (!state.empty()) text += std::string(", ") + part + ": " + std::to_string(state.size()) + " tensors";
    };
    add("model", x.model);
    add("optimizer", x.optimizer);
    add("scheduler", x.scheduler);
    add("data", x.data);
    return text + (x.path.empty() ? ")" : ", path='" + x.path + "')");
  });
  property("step", &Checkpoint::step, "The step after which it was saved.");
  property("config_json", &Checkpoint::config, "The model's configuration as JSON, or \"\".");
  property("data", &Checkpoint::data, "Tensors of the training program's own.");
  property("path", &Checkpoint::path, "The file it was read from.");
  property("created", &Checkpoint::created, "When it was written.");
  property("library_version", &Checkpoint::library_version, "The version of glade that wrote it.");
  type.def_property_readonly(
      "config",
      [header](const T& self) -> py::object {
        const std::string& json = header(self).config;
        return json.empty() ? py::none() : py::module_::import("json").attr("loads")(json);
      },
      "The model's configuration, a dict, or None.");
  type.def_property_readonly(
      "random",
      [header](const T& self) {
        RandomStates states;
        for (const auto& [name, state] : header(self).random) states[name] = {state.seed, state.offset};
        return states;
      },
      "Seed and offset of each random generator that was saved.");
  type.def(
      "restore",
      [header](const T& self, Module& model, optim::Optimizer* optimizer, optim::LRScheduler* scheduler) {
        if constexpr (std::is_same_v<T, CheckpointFile>) self.restore(model, optimizer, scheduler);
        else restore(self, model, optimizer, scheduler);
        set_random_state(header(self));
      },
      arg("model"), arg("optimizer") = py::none(), arg("scheduler") = py::none(), Unlocked(),
      "Copies the values into a model and, where given, the optimizer and the schedule, and sets the random generator's state. "
      "CheckpointError that lists all entries that do not fit; nothing is changed then.");
}

void bind_hdf5_file(py::module_& module) {
  py::class_<HDF5Entry>(module, "HDF5Entry", "A tensor in a file.")
      .def_readonly("name", &HDF5Entry::name, "Its path, \"model/layers/0/weight\".")
      .def_readonly("dtype", &HDF5Entry::dtype, "The element type in memory.")
      .def_readonly("shape", &HDF5Entry::shape, "The sizes of the dimensions.")
      .def_readonly("stored_bytes", &HDF5Entry::stored_bytes, "What it takes in the file.")
      .def_readonly("first_name", &HDF5Entry::first_name, "Of a tensor with several names, the first; else its name.")
      .def_readonly("problem", &HDF5Entry::problem, "Why it cannot be read, or \"\".");
  py::class_<HDF5File>(module, "HDF5File",
                       "An HDF5 file of numbers, open for reading: a checkpoint's or another program's. Files need not be "
                       "trusted: they give right values or a CheckpointError.")
      .def(py::init([](const Path& path) { return HDF5File(path.string()); }), arg("path"), Unlocked())
      .def_property_readonly("path", &HDF5File::path, "Of the file, as it was opened.")
      .def_property_readonly("entries", &HDF5File::entries, "All tensors, by name.")
      .def("__contains__", &HDF5File::contains, arg("name"), "Whether there is a tensor or a group of this name.")
      .def("string_attribute", &HDF5File::string_attribute, arg("name"), "An attribute of the file, or None.")
      .def("integer_attribute", &HDF5File::integer_attribute, arg("name"), "An attribute of the file, or None.")
      .def("read", &HDF5File::read, arg("name"), py::kw_only(), arg("device") = kCPU, arg("dtype") = py::none(), Unlocked(),
           "One tensor, without touching the others; `dtype` converts floating-point ones.")
      .def("read_into", py::overload_cast<const std::string&, const Tensor&>(&HDF5File::read_into, py::const_), arg("name"),
           arg("target"), Unlocked(), "The same into an existing tensor.")
      .def("verify", py::overload_cast<const std::string&>(&HDF5File::verify, py::const_), arg("name"), Unlocked(),
           "Reads the values, checks their checksums and keeps nothing.")
      .def("load", load_part, arg("prefix") = "", py::kw_only(), arg("include") = std::vector<std::string>{},
           arg("rename") = py::dict(), arg("device") = kCPU, arg("dtype") = py::none(),
           "The tensors below a group by name. See load_state_dict_hdf5.");
}

void bind_checkpoints(py::module_& module) {
  py::class_<Checkpoint> checkpoint(module, "Checkpoint", "What a checkpoint file holds; tensors on the CPU.");
  checkpoint.def_readonly("model", &Checkpoint::model, "The model's state_dict.")
      .def_readonly("optimizer", &Checkpoint::optimizer, "The optimizer's state_dict; empty where none was saved.")
      .def_readonly("scheduler", &Checkpoint::scheduler, "The schedule's state_dict; empty where none was saved.");
  def_header(checkpoint, [](const Checkpoint& self) -> const Checkpoint& { return self; });

  py::class_<CheckpointFile> file(
      module, "CheckpointFile",
      "A checkpoint open for reading, whose tensors go from the file to where they belong, one by one.");
  file.def(py::init([](const Path& path) { return CheckpointFile(path.string()); }), arg("path"), Unlocked())
      .def_property_readonly("file", &CheckpointFile::file, "The HDF5File, for single tensors and parts.")
      .def("verify", &CheckpointFile::verify, Unlocked(), "Reads the file and checks all checksums.")
      .def("load", &CheckpointFile::load, Unlocked(), "Everything, as a Checkpoint.");
  def_header(file, [](const CheckpointFile& self) -> const Checkpoint& { return self.header(); });

  py::class_<CheckpointSaver>(
      module, "CheckpointSaver",
      "Saves checkpoints in the background. With `keep`, \"model.h5\" stands for \"model-00000100.h5\" and "
      "so on, with the step, of which the last `keep` stay. Leaving a `with` block waits. CheckpointError where no file of this "
      "name can be written.")
      .def(py::init([](const Path& path, int keep, int compression, bool checksums) {
             return std::make_unique<CheckpointSaver>(path.string(), keep, CheckpointOptions{compression, checksums});
           }),
           arg("path"), arg("keep") = 0, py::kw_only(), arg("compression") = 0, arg("checksums") = true)
      .def("save", save_in_background, arg("model"), py::kw_only(), arg("optimizer") = py::none(), arg("scheduler") = py::none(),
           arg("step") = 0, arg("config") = py::none(), arg("data") = StateDict{},
           "As glade.save, but copies the values and returns while the copy is written. Waits for the save before and "
           "raises its error.")
      .def("check", &CheckpointSaver::check, Unlocked(),
           "Raises the error of a save that has failed meanwhile. Does not wait: for every step.")
      .def("wait", &CheckpointSaver::wait, Unlocked(), "Waits until everything is on the disk, or raises.")
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](CheckpointSaver& self, const py::args&) {
        const py::gil_scoped_release unlocked;
        self.wait();
      });
}

}  // namespace

void bind_checkpoint(py::module_& module) {
  bind_hdf5_file(module);
  bind_checkpoints(module);

  module.def(
      "save", save, arg("model"), arg("path"), py::kw_only(), arg("optimizer") = py::none(), arg("scheduler") = py::none(),
      arg("step") = 0, arg("config") = py::none(), arg("data") = StateDict{}, arg("compression") = 0, arg("checksums") = true,
      "Writes an HDF5 checkpoint: a model, or tensors by name, and where given the optimizer and the schedule, with the "
      "random generator's state.\n\n`config` is a JSON object, by default that of a language model; `data` are tensors of the "
      "training program's own; compression is a gzip level from 1 to 9, or 0. At any instant the file is the old one or "
      "the new one, whole. CheckpointError naming the file, the entry and the cause; ValueError for a config that is no JSON "
      "object.");
  module.def("load", load, arg("path"),
             "A Checkpoint from a file that glade wrote; from any other HDF5 file of numbers, its tensors by name, with \".\" "
             "between the groups. CheckpointError that names the file and the cause where it cannot be read.");
  module.def("load_state_dict_hdf5", load_state_dict, arg("path"), arg("prefix") = "", py::kw_only(),
             arg("include") = std::vector<std::string>{}, arg("rename") = py::dict(), arg("device") = kCPU,
             arg("dtype") = py::none(),
             "The tensors below the group `prefix` of any HDF5 file, by name. CheckpointError that names the file and the cause "
             "where it "
             "cannot be read.\n\n`include`: patterns, of which one must match the "
             "whole name (\"*\": any characters, \"?\": one). `rename`: of the first key that begins the name, the value takes "
             "its place. `dtype` converts floating-point tensors.");
  module.def(
      "numbered_checkpoints", [](const Path& path) { return numbered_checkpoints(path.string()); }, arg("path"),
      "The numbered files of a CheckpointSaver of this name, by step. None, and no CheckpointError, where the folder is "
      "missing.");
  module.def("open_newest_checkpoint", open_newest, arg("path"),
             "Opens the checkpoint of the highest step among `path` and the numbered files of a CheckpointSaver, having read all "
             "of it: a CheckpointFile, or None where there is none. Damaged ones are passed over with a warning that names them; "
             "CheckpointError where all are damaged.");
}

}  // namespace glade::python
