// glade.nn.Module, from which layers in C++ and classes in Python derive: its parts, what it prints, copies and pickles.
#include <pybind11/functional.h>

#include <set>

#include <glade/nn/module.h>

#include "modules.h"

namespace glade::python {

namespace {

using namespace nn;
using py::arg;

/// Module's protected members, which a class in Python calls by setting attributes.
struct Registry : Module {
  using Module::part;
  using Module::Part;
  using Module::set_buffer;
  using Module::set_module;
  using Module::set_parameter;
  using Module::unregister;
};
using Part = Registry::Part;
constexpr auto set_parameter = &Registry::set_parameter;
constexpr auto set_buffer = &Registry::set_buffer;
constexpr auto set_module = &Registry::set_module;
constexpr auto remove = &Registry::unregister;
constexpr auto part_of = &Registry::part;

std::string type_name(const py::object& object) { return py::str(py::type::of(object).attr("__name__")); }

/// The C++ part of a module, which a class in Python has from super().__init__() on.
Module& module_of(const py::object& self) {
  if (!PyObject_TypeCheck(self.ptr(), reinterpret_cast<PyTypeObject*>(py::type::of<Module>().ptr())))
    throw py::type_error("expected a module, got a " + type_name(self));
  if (reinterpret_cast<py::detail::instance*>(self.ptr())->get_value_and_holder().value_ptr() == nullptr)
    throw py::attribute_error("a module has no parts before its __init__ calls super().__init__()");
  return self.cast<Module&>();
}

// ---- attributes ------------------------------------------------------------------------------------------------------

/// Whether the attribute belongs to the class: a property, which sees to its own registration.
bool is_property(const py::object& self, const py::str& name) {
  const py::object found = py::getattr(py::type::of(self), name, py::none());
  return py::hasattr(found, "__set__");
}

bool has_name(const NamedTensors& tensors, const std::string& name) {
  return std::ranges::any_of(tensors, [&](const auto& entry) { return entry.first == name; });
}

void set_plainly(const py::object& self, const py::str& name, const py::object& value) {
  if (PyObject_GenericSetAttr(self.ptr(), name.ptr(), value.ptr()) != 0) throw py::error_already_set();
}

/// AttributeError for what a layer written in C++ would not see, and for what would be lost: the Python object of a layer inside
/// a model in C++ lives only as long as it is used.
void check_can_keep(const py::object& self, const py::str& name) {
  if ((module_of(self).*part_of)(name) == Part::module && !self.attr("__dict__").contains(name))
    throw py::attribute_error("'" + std::string(name) + "' is a part of a " + type_name(self) +
                              ", which is written in C++ and keeps its parts: set their parameters, or write a module that "
                              "calls others");
  if (!reinterpret_cast<py::detail::instance*>(self.ptr())->owned)
    throw py::attribute_error("a " + type_name(self) + " inside a model written in C++ keeps no attributes, such as '" +
                              std::string(name) + "': keep it in a module of your own");
}

// Children are found by address, so an attribute that holds one keeps it alive as long as the parent refers to it.
void set_attribute(const py::object& self, const py::str& name, const py::object& value) {
  Module& module = module_of(self);
  if (is_property(self, name)) return set_plainly(self, name, value);
  check_can_keep(self, name);
  const Tensor x = is_tensor(value.ptr()) ? tensor_of(value.ptr()) : Tensor();
  const Part before = (module.*part_of)(name);
  const bool is_parameter = x.defined() && x.requires_grad() && x.is_leaf();
  if (x.defined() && !is_parameter && before == Part::parameter) {
    if (const py::dict attributes = self.attr("__dict__"); attributes[name].cast<Tensor>().is_same(x)) return;  // a frozen one
    throw py::type_error(std::string(name) + ": expected a parameter, such as nn.Parameter(tensor), or None");
  }
  if (is_parameter) (module.*set_parameter)(name, x);
  else if (x.defined() && (before == Part::buffer || before == Part::unsaved_buffer))
    (module.*set_buffer)(name, x, before == Part::buffer);
  else if (py::isinstance<Module>(value)) (module.*set_module)(name, value.cast<Module&>());
  else (module.*remove)(name);
  set_plainly(self, name, value);
}

void delete_attribute(const py::object& self, const py::str& name) {
  Module& module = module_of(self);
  if (PyObject_GenericSetAttr(self.ptr(), name.ptr(), nullptr) != 0) throw py::error_already_set();
  (module.*remove)(name);
}

void register_buffer(const py::object& self, const py::str& name, const py::object& tensor, bool persistent) {
  if (!is_tensor(tensor.ptr())) throw py::type_error("register_buffer: expected a tensor");
  Module& module = module_of(self);
  check_can_keep(self, name);
  (module.*set_buffer)(name, tensor_of(tensor.ptr()), persistent);
  set_plainly(self, name, tensor);
}

/// PyTorch's ways to say self.name = value.
void register_parameter(const py::object& self, const py::str& name, const py::object& x) {
  if (!x.is_none() && !(is_tensor(x.ptr()) && tensor_of(x.ptr()).requires_grad() && tensor_of(x.ptr()).is_leaf()))
    throw py::type_error("register_parameter: expected a parameter, such as nn.Parameter(tensor), or None");
  py::setattr(self, name, x);  // a class may have its own __setattr__
}

void register_module(const py::object& self, const py::str& name, const py::object& module) {
  if (!module.is_none()) module_of(module);
  py::setattr(self, name, module);
}

/// What stands at a dotted name; the module itself for "".
py::object at_path(const py::object& self, const std::string& path) {
  py::object found = self;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    found = found.attr(path.substr(begin, end - begin).c_str());
    begin = end + 1;
  }
  return found;
}

py::object child(const py::object& self, Module* module) {
  return py::cast(module, py::return_value_policy::reference_internal, self);
}

/// The arguments of the constructor that makes a layer like this one, for the layers written in C++; else None.
py::object arguments_of(const py::object& self) {
  return py::hasattr(py::type::of(self), "_arguments") ? self.attr("_arguments")() : py::none();
}

/// Of the layers written in C++, whose parts and sizes are no attributes of the object.
py::object find_attribute(const py::object& self, const std::string& name) {
  for (const auto& [key, module] : module_of(self).named_children())
    if (key == name) return child(self, module);
  if (const py::object arguments = arguments_of(self); !arguments.is_none() && arguments.contains(name))
    return arguments[py::str(name)];
  throw py::attribute_error("'" + type_name(self) + "' has no attribute '" + name + "'");
}

// ---- the modules below -----------------------------------------------------------------------------------------------

py::list named_children(const py::object& self) {
  py::list result;
  for (const auto& [name, module] : module_of(self).named_children()) result.append(py::make_tuple(name, child(self, module)));
  return result;
}

py::list children(const py::object& self) {
  py::list result;
  for (const auto& [name, module] : module_of(self).named_children()) result.append(child(self, module));
  return result;
}

/// Each module once, as in PyTorch, under its first name.
void collect_modules(const py::object& module, const std::string& prefix, std::set<Module*>& seen, py::list& result) {
  if (!seen.insert(&module_of(module)).second) return;
  result.append(py::make_tuple(prefix, module));
  for (const auto& [name, below] : module_of(module).named_children())
    collect_modules(child(module, below), prefix.empty() ? name : prefix + "." + name, seen, result);
}

py::list named_modules(const py::object& self) {
  py::list result;
  std::set<Module*> seen;
  collect_modules(self, "", seen, result);
  return result;
}

py::list modules(const py::object& self) {
  py::list result;
  for (const py::handle pair : named_modules(self)) result.append(pair[py::int_(1)]);
  return result;
}

py::object apply(const py::object& self, const py::function& function) {
  for (const py::handle below : children(self)) apply(py::reinterpret_borrow<py::object>(below), function);
  function(self);
  return self;
}

// ---- text ------------------------------------------------------------------------------------------------------------

std::string indented(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return result;
}

/// A layer's sizes and options, or the shapes of a module's own parameters and buffers.
std::string extra_repr(const py::object& self) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (const py::object arguments = arguments_of(self); !arguments.is_none()) {
    for (const auto& [name, value] : arguments.cast<py::dict>())
      if (!value.is_none()) add(py::str(name).cast<std::string>() + "=" + py::repr(value).cast<std::string>());
    return text;
  }
  const Module& module = module_of(self);
  for (const NamedTensors& tensors : {module.named_parameters(), module.named_buffers()})
    for (const auto& [name, x] : tensors)
      if (name.find('.') == name.npos) add(name + " " + x.shape().str());
  return text;
}

/// As PyTorch prints a module, equal ones in a row once.
std::string describe(const py::object& self) {
  struct Line {
    std::string first, last, text;
    int count;
  };
  std::vector<Line> parts;
  const auto is_number = [](const std::string& name) { return name.find_first_not_of("0123456789") == name.npos; };
  const py::list shown = py::hasattr(self, "_parts_to_show") ? py::list(self.attr("_parts_to_show")()) : named_children(self);
  for (const py::handle pair : shown) {
    const std::string name = py::str(pair[py::int_(0)]), text = py::repr(pair[py::int_(1)]);
    if (!parts.empty() && parts.back().text == text && is_number(name) && is_number(parts.back().last)) {
      parts.back().last = name;
      ++parts.back().count;
    } else {
      parts.push_back({name, name, text, 1});
    }
  }
  const std::string extra = py::str(self.attr("extra_repr")());
  std::string text = type_name(self) + "(";
  if (parts.empty()) return text + extra + ")";
  if (!extra.empty()) text += "\n  " + indented(extra);
  for (const Line& part : parts) {
    text += "\n  (" + part.first + (part.count > 1 ? "-" + part.last : "") + "): ";
    if (part.count > 1) text += std::to_string(part.count) + " x ";
    text += indented(part.text);
  }
  return text + "\n)";
}

// ---- copies ----------------------------------------------------------------------------------------------------------

using Names = std::vector<std::string>;

/// The module's own names, of its Python attributes, among `tensors`.
Names own_names(const NamedTensors& tensors, const py::dict& attributes) {
  Names names;
  for (const auto& [name, x] : tensors)
    if (attributes.contains(name)) names.push_back(name);
  return names;
}

/// The names of parameters that are one tensor, each list beginning with the one that the others follow.
std::vector<Names> tied_names(const Module& module) {
  const NamedTensors buffers = module.named_buffers();
  std::vector<std::pair<Tensor, Names>> tensors;
  for (const auto& [name, x] : module.named_state()) {
    if (std::ranges::any_of(buffers, [&](const auto& buffer) { return buffer.second.is_same(x); })) continue;
    const auto found = std::ranges::find_if(tensors, [&](const auto& entry) { return entry.first.is_same(x); });
    if (found == tensors.end()) tensors.emplace_back(x, Names{name});
    else found->second.push_back(name);
  }
  std::vector<Names> result;
  for (const auto& [x, names] : tensors)
    if (names.size() > 1) result.push_back(names);
  return result;
}

/// What training mode the modules below are in, and which compute values again in backward, by dotted name, parents first.
py::list modes_below(const py::object& self) {
  py::list modes;
  for (const py::handle item : named_modules(self)) {
    const auto [path, module] = item.cast<std::pair<std::string, py::object>>();
    modes.append(py::make_tuple(path, module_of(module).training(), py::getattr(module, "recompute", py::bool_(false))));
  }
  return modes;
}

/// What pickle and copy.deepcopy make the module of again: its class, the arguments of a layer written in C++, and a state.
py::tuple reduce(const py::object& self) {
  const Module& module = module_of(self);
  const py::object arguments = arguments_of(self);
  const py::dict attributes = self.attr("__dict__");
  if (arguments.is_none() && *py::detail::get_type_info(Py_TYPE(self.ptr()))->cpptype != typeid(Module))
    throw py::type_error("a " + type_name(self) + " cannot be pickled or copied alone: copy the model that it is a part of");
  for (const char* name : {"__getstate__", "__setstate__"})
    if (PyFunction_Check(py::getattr(py::type::of(self), name, py::none()).ptr()))
      throw py::type_error("a " + type_name(self) + " cannot be pickled or copied: its own " + name +
                           " would lose the parts, leave it out");
  py::dict buffers;  // of Python attributes, and whether they are saved
  const NamedTensors saved = module.named_state();
  for (const std::string& name : own_names(module.named_buffers(), attributes)) buffers[py::str(name)] = has_name(saved, name);
  py::dict tensors;  // of the C++ part
  for (const auto& [name, x] : module.named_state())
    if (!attributes.contains(name.substr(0, name.find('.'))) && !has_name(module.named_buffers(), name))
      tensors[py::str(name)] = to_python(x);  // its buffers are among the arguments
  const py::dict state(arg("attributes") = attributes.attr("copy")(),
                       arg("parameters") = own_names(module.named_parameters(), attributes), arg("buffers") = buffers,
                       arg("tensors") = tensors, arg("tied") = tied_names(module), arg("training") = module.training(),
                       arg("modes") = modes_below(self));
  return py::make_tuple(py::module_::import("glade._pickle").attr("make_module"), py::make_tuple(py::type::of(self), arguments),
                        state);
}

py::object owner_of(const py::object& module, const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return at_path(module, dot == path.npos ? "" : path.substr(0, dot));
}

/// Makes x the parameter of that dotted name, whether it is trained or not.
void assign(const py::object& self, const std::string& path, Tensor x) {
  const py::object owner = owner_of(self, path);
  const std::string name = path.substr(path.rfind('.') + 1);
  if (owner.attr(name.c_str()).cast<Tensor>().is_same(x)) return;
  const bool requires_grad = x.requires_grad();
  x.set_requires_grad();
  owner.attr(name.c_str()) = to_python(x);
  x.set_requires_grad(requires_grad);
}

void set_state(const py::object& self, const py::dict& state) {
  Module& module = module_of(self);
  module.train(state["training"].cast<bool>());
  for (const auto& [name, value] : state["attributes"].cast<py::dict>())
    set_attribute(self, py::reinterpret_borrow<py::str>(name), py::reinterpret_borrow<py::object>(value));
  const py::dict attributes = self.attr("__dict__");
  for (const py::handle item : state["parameters"]) {  // frozen ones too
    const auto name = py::reinterpret_borrow<py::str>(item);
    Tensor x = attributes[name].cast<Tensor>();
    const bool requires_grad = x.requires_grad();
    (module.*set_parameter)(name, x);
    x.set_requires_grad(requires_grad);
  }
  for (const auto& [name, persistent] : state["buffers"].cast<py::dict>())
    register_buffer(self, py::reinterpret_borrow<py::str>(name), attributes[name], persistent.cast<bool>());
  for (const auto& [name, x] : state["tensors"].cast<py::dict>()) assign(self, name.cast<std::string>(), x.cast<Tensor>());
  for (const Names& names : state["tied"].cast<std::vector<Names>>()) {
    const Tensor first = owner_of(self, names[0]).attr(names[0].substr(names[0].rfind('.') + 1).c_str()).cast<Tensor>();
    for (const std::string& name : names) assign(self, name, first);
  }
  if (!state.contains("modes")) return;  // pickled by an older version
  for (const py::handle item : state["modes"]) {
    const auto [path, training, recompute] = item.cast<std::tuple<std::string, bool, bool>>();
    const py::object below = at_path(self, path);
    module_of(below).train(training);
    if (recompute) below.attr("recompute") = recompute;
  }
}

// ---- the class -------------------------------------------------------------------------------------------------------

/// A change of the module, as a method that returns it.
template <class... Args>
auto returning_self(void (Module::*change)(Args...)) {
  return [change](const py::object& self, Args... args) {
    (self.cast<Module&>().*change)(args...);
    return self;
  };
}
auto converting_to(DType dtype) {
  return [dtype](const py::object& self) {
    self.cast<Module&>().to(dtype);
    return self;
  };
}

using ModuleClass = py::class_<Module>;

void def_parts(ModuleClass& type) {
  type.def("register_buffer", register_buffer, arg("name"), arg("tensor"), arg("persistent") = true,
           "Sets an attribute to a tensor that is moved and, if persistent, saved with the module, but not trained. ValueError "
           "for "
           "a name with '.' or '/'.")
      .def("register_parameter", register_parameter, arg("name"), arg("parameter"),
           "Sets an attribute to a parameter, or to None, as self.name = parameter does. TypeError for other tensors.")
      .def("register_module", register_module, arg("name"), arg("module"),
           "Sets an attribute to a module, or to None, as self.name = module does. TypeError for what is no module.")
      .def("add_module", register_module, arg("name"), arg("module"), "register_module(name, module)")
      .def(
          "get_submodule",
          [](const py::object& self, const std::string& target) {
            const py::object found = at_path(self, target);
            module_of(found);
            return found;
          },
          arg("target"), "The module of a dotted name, \"layers.0.attn\". AttributeError where there is none.")
      .def(
          "get_parameter",
          [](const py::object& self, const std::string& target) {
            const py::object found = at_path(self, target);
            if (!is_tensor(found.ptr())) throw py::attribute_error("get_parameter: '" + target + "' is a " + type_name(found));
            return found;
          },
          arg("target"), "The parameter of a dotted name, \"layers.0.attn.weight\". AttributeError where there is none.")
      .def("children", children, "The modules right below this one.")
      .def("modules", modules, "This module and all below, each once.")
      .def("named_children", named_children, "(name, module) for each module right below this one.")
      .def("named_modules", named_modules,
           "(dotted name, module) for this module (named \"\") and all below, each under its first name only.")
      .def("named_parameters", &Module::named_parameters,
           "(dotted name, tensor) for each parameter of this module and all below, a shared one under its first name only.")
      .def("parameters", &Module::parameters, "The parameters of this module and all below.")
      .def("named_buffers", &Module::named_buffers,
           "(dotted name, tensor) for each buffer of this module and all below, a shared one under its first name only.")
      .def(
          "buffers",
          [](const Module& self) {
            Tensors result;
            for (const auto& [name, x] : self.named_buffers()) result.push_back(x);
            return result;
          },
          "The buffers of this module and all below.")
      .def("apply", apply, arg("function"),
           "Calls function(module) for all modules below, the innermost first, and for this one; returns the module.")
      .def("state_dict", &Module::state_dict,
           "Every parameter and persistent buffer by dotted name, a shared one under each of its names. The values share the "
           "module's "
           "memory.")
      .def("load_state_dict", &Module::load_state_dict, arg("state"), arg("strict") = true, Unlocked(),
           "Copies a state_dict's values into the parameters and buffers. ValueError that lists missing, unexpected, mis-shaped "
           "and mistyped entries at once; nothing is changed then. Unless `strict`, missing and unexpected ones are no error.");
}

void def_changes(ModuleClass& type) {
  type.def_property_readonly("training", &Module::training, "Whether the module is in training mode.")
      .def("train", returning_self(&Module::train), arg("mode") = true,
           "Sets training mode for this module and all below, and returns the module.")
      .def("eval", returning_self(&Module::eval), "Sets evaluation mode for this module and all below, and returns the module.")
      .def(
          "to", returning_self<DType>(&Module::to), arg("dtype"),
          "Moves the parameters, buffers and gradients to a device, or converts the floating-point ones to a dtype, or both, and "
          "returns the module. The tensors stay the same objects. Not between a forward pass and its backward. DTypeError for a "
          "dtype that is not floating-point.")
      .def("to", returning_self<Device>(&Module::to), arg("device"))
      .def(
          "to",
          [](const py::object& self, const Device& device, DType dtype) {
            self.cast<Module&>().to(dtype);
            self.cast<Module&>().to(device);
            return self;
          },
          arg("device"), arg("dtype"))
      .def(
          "cuda",
          [](const py::object& self, int index) {
            self.cast<Module&>().to(Device{DeviceType::cuda, index});
            return self;
          },
          arg("index") = 0, "to(\"cuda:<index>\"). DeviceError without such a GPU.")
      .def(
          "cpu",
          [](const py::object& self) {
            self.cast<Module&>().to(kCPU);
            return self;
          },
          "to(\"cpu\").")
      .def("float", converting_to(DType::float32), "to(glade.float32).")
      .def("double", converting_to(DType::float64), "to(glade.float64).")
      .def("half", converting_to(DType::float16), "to(glade.float16).")
      .def("bfloat16", converting_to(DType::bfloat16), "to(glade.bfloat16).")
      .def("zero_grad", &Module::zero_grad, arg("set_to_none") = true,
           "Forgets the gradients of all parameters, or fills them with zeros.")
      .def("requires_grad_", returning_self(&Module::set_requires_grad), arg("value") = true,
           "Sets whether gradients are wanted for the parameters, and returns the module.");
}

}  // namespace

void bind_module(py::module_& module) {
  ModuleClass type(module, "Module", py::dynamic_attr(),
                   "The base of all layers and models. A class derives from it, makes its parts in __init__ after "
                   "super().__init__(), and has a `forward` of its own; calling the module calls forward.\n\nParts are "
                   "registered when they are set as attributes: modules, and tensors that require a gradient (nn.Parameter), "
                   "which become parameters. register_buffer adds what is saved but not trained. copy.deepcopy copies a module "
                   "with its tensors, and pickle saves it.");
  type.def(py::init<>())
      .def("__setattr__", set_attribute)
      .def("__delattr__", delete_attribute)
      .def("__getattr__", find_attribute)
      .def(
          "__call__",
          [](const py::object& self, const py::args& args, const py::kwargs& kwargs) {
            return self.attr("forward")(*args, **kwargs);
          },
          "forward(...)")
      .def("extra_repr", extra_repr, "What stands in the module's own line when it is printed; a class may have its own.")
      .def("__repr__", describe)
      .def("_repr_html_", [](const py::object& self) { return py::module_::import("glade.nn._html").attr("module_html")(self); })
      .def("__reduce__", reduce);
  py::setattr(type, "__setstate__", py::cpp_function(set_state, py::name("set_state"), py::is_method(type)));
  def_parts(type);
  def_changes(type);
}

}  // namespace glade::python
