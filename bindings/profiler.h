#pragma once
#include "python.h"

namespace glade::python {

void bind_profiler(py::module_& module);

}  // namespace glade::python
