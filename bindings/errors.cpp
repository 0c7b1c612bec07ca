// From C++ exceptions to Python's: one class a cause, each also the closest built-in; from C++'s messages to Python's. And from
// Ctrl-C to C++.
#include <array>

#include <glade/core/error.h>
#include <glade/core/interrupt.h>
#include <glade/core/message.h>
#include <glade/core/process_group.h>

#include "python.h"

namespace glade::python {

namespace {

struct ErrorClass {
  const char* name;
  const char* doc;
  PyObject** builtin;
  PyObject* type = nullptr;
};

PyObject* base_error = nullptr;

std::array<ErrorClass, 10> error_classes{{
    {"ShapeError", "Sizes that do not fit together.", &PyExc_ValueError},
    {"DTypeError", "An element type that the operation does not take.", &PyExc_TypeError},
    {"DeviceError", "Tensors on different devices, or a device that is not there.", &PyExc_RuntimeError},
    {"IndexError", "A dimension or position out of range.", &PyExc_IndexError},
    {"ValueError", "An argument out of its domain.", &PyExc_ValueError},
    {"AutogradError", "Misuse of the tape.", &PyExc_RuntimeError},
    {"OutOfMemoryError", "An allocation that failed.", &PyExc_MemoryError},
    {"CudaError", "A CUDA or cuBLAS call that failed.", &PyExc_RuntimeError},
    {"CheckpointError", "A file that cannot be read or written as asked.", &PyExc_OSError},
    {"DistributedError", "Processes that do not agree or do not answer, and MPI or NCCL where it is missing or fails.",
     &PyExc_RuntimeError},
}};

template <class... E>
PyObject* class_of(const Error& error) {
  // In the order of error_classes.
  std::size_t i = 0;
  const bool found = ((dynamic_cast<const E*>(&error) != nullptr || (++i, false)) || ...);
  return found ? error_classes[i].type : base_error;
}

/// A message in Python's names: C++ functions say "Module::to: ..." and know guards instead of context managers.
std::string in_python(std::string text) {
  constexpr std::string_view kGuard = "a NoGradGuard", kContext = "glade.no_grad()";
  for (std::size_t at; (at = text.find(kGuard)) != text.npos;) text.replace(at, kGuard.size(), kContext);
  const std::size_t name_end = text.find_first_of(" /.\\");  // of the operation, before what the caller named
  for (std::size_t at; (at = text.find("::")) < name_end;) text.replace(at, 2, ".");
  return text;
}

void set_error(const Error& error) {
  PyErr_SetString(class_of<ShapeError, DTypeError, DeviceError, IndexError, ValueError, AutogradError, OutOfMemoryError,
                           CudaError, CheckpointError, DistributedError>(error),
                  in_python(error.what()).c_str());
}

/// What Python calls a C++ type.
std::string python_name(const std::string& type) {
  if (type.find("basic_string") != type.npos) return "str";
  if (type == "double" || type == "float") return "float";
  if (type == "bool") return "bool";
  if (type.find("int") != type.npos || type.find("long") != type.npos) return "int";
  const std::size_t begin = type.find("glade::");
  if (begin == type.npos) return type;
  std::string name = type.substr(
      begin, type.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_:", begin) - begin);
  return name.substr(name.rfind(':') + 1);
}

/// pybind11 calls a value of a wrong type inside of a list or returned by a callback a RuntimeError.
void set_error(const py::cast_error& error) {
  const std::string text = error.what();
  constexpr std::string_view kGiven = "Unable to cast Python instance of type ", kWanted = " to C++ type ";
  const std::size_t wanted = text.find(kWanted);
  if (!text.starts_with(kGiven) || wanted == text.npos) {
    PyErr_SetString(PyExc_TypeError, text.c_str());
    return;
  }
  const auto between_quotes = [&](std::size_t from) {
    const std::size_t begin = text.find('\'', from) + 1;
    return text.substr(begin, text.find('\'', begin) - begin);
  };
  PyErr_Format(PyExc_TypeError, "a value is of type %s, expected %s", between_quotes(0).c_str(),
               python_name(between_quotes(wanted)).c_str());
}

}  // namespace

void set_error_from_exception() {
  try {
    throw;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::cast_error& error) {
    set_error(error);
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const Error& error) {
    set_error(error);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

namespace {

std::uint64_t main_thread = 0;

/// Called by long operations: Ctrl-C ends them. Python's signals arrive at its main thread.
void check_signals() {
  if (PyThread_get_thread_ident() != main_thread || !Py_IsInitialized()) return;
  const py::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

/// Warnings are Python's; notes go to the logger "glade", which shows them where a program asks for them.
void show_message(MessageKind kind, const std::string& message) {
  const py::gil_scoped_acquire locked;
  if (kind == MessageKind::warning) {
    if (PyErr_WarnEx(PyExc_UserWarning, message.c_str(), 1) != 0) throw py::error_already_set();
  } else {
    py::module_::import("logging").attr("getLogger")("glade").attr("info")("%s", message);
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<std::uint64_t>();
  set_interrupt_check(check_signals);
  set_message_handler(show_message);
  base_error = PyErr_NewExceptionWithDoc("glade.Error", "The base of all of glade's errors.", nullptr, nullptr);
  module.add_object("Error", base_error);
  for (ErrorClass& error : error_classes) {
    const py::tuple bases = py::make_tuple(py::handle(base_error), py::handle(*error.builtin));
    error.type = PyErr_NewExceptionWithDoc((std::string("glade.") + error.name).c_str(), error.doc, bases.ptr(), nullptr);
    if (error.type == nullptr) throw py::error_already_set();
    module.add_object(error.name, error.type);
  }
  py::register_local_exception_translator([](std::exception_ptr exception) {
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) {
      set_error(error);
    } catch (const py::cast_error& error) {
      set_error(error);
    }
  });
}

}  // namespace glade::python
