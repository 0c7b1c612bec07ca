# The Python interpreter to build for, and pybind11: its own copy (from pip) or the distribution's.
if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND ${Python_EXECUTABLE} -c "import pybind11; print(pybind11.get_cmake_dir())"
                OUTPUT_VARIABLE pybind11_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(pybind11_folder AND NOT pybind11_DIR)
  set(pybind11_DIR ${pybind11_folder})
endif()
glade_find_package(pybind11 pybind11-dev 2.10)
