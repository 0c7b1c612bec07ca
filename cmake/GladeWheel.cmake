# A wheel: the extension module, libglade.so beside it, and in glade/lib the OpenMP runtime, fmt and SLEEF. OpenBLAS, HDF5 and zlib
# are in libglade.so, linked from their archives: only the parts that glade calls, hidden from everybody else. The OpenMP
# runtime stays a library under its own name, because a process must have no second one. So does fmt: the objects of the
# build tree, which call its library, are then the wheel's too. So does SLEEF, of which Debian 12 packages no archive. CUDA's
# libraries come from NVIDIA's wheels.
foreach(archive sz aec)  # which libhdf5.a calls
  find_library(GLADE_${archive}_ARCHIVE lib${archive}.a)
  if(NOT GLADE_${archive}_ARCHIVE)
    message(FATAL_ERROR "the wheel needs lib${archive}.a, which was not found. On Debian and Ubuntu it is in the package libaec-dev: "
                        "install it, or run scripts/setup.sh.")
  endif()
  target_link_libraries(hdf5::hdf5 INTERFACE ${GLADE_${archive}_ARCHIVE})
endforeach()
target_link_libraries(hdf5::hdf5 INTERFACE ZLIB::ZLIB)
target_sources(glade PRIVATE ${PROJECT_SOURCE_DIR}/bindings/wheel/hdf5_archive.c)
target_link_options(glade PRIVATE LINKER:--wrap=stdout,--wrap=stderr,-z,defs)

set(rpath "$ORIGIN/lib")
if(GLADE_WITH_CUDA AND CUDAToolkit_VERSION_MAJOR GREATER_EQUAL 13)
  list(APPEND rpath "$ORIGIN/../nvidia/cu${CUDAToolkit_VERSION_MAJOR}/lib")
elseif(GLADE_WITH_CUDA)
  list(APPEND rpath "$ORIGIN/../nvidia/cuda_runtime/lib" "$ORIGIN/../nvidia/cublas/lib")
endif()
foreach(property VERSION SOVERSION)  # out of the file name: wheels have no links
  set_property(TARGET glade PROPERTY ${property})
endforeach()
set_target_properties(glade PROPERTIES INSTALL_RPATH "${rpath}" INSTALL_RPATH_USE_LINK_PATH OFF)
set_target_properties(_glade PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS _glade glade LIBRARY DESTINATION glade COMPONENT python)

get_target_property(libraries fmt::fmt LOCATION)
list(APPEND libraries ${GLADE_SLEEF_LIBRARY})
list(FILTER OpenMP_CXX_LIB_NAMES INCLUDE REGEX "omp")
foreach(name ${OpenMP_CXX_LIB_NAMES})
  list(APPEND libraries ${OpenMP_${name}_LIBRARY})
endforeach()
foreach(library ${libraries})
  file(REAL_PATH ${library} library)
  string(REGEX MATCH "lib[a-z]+\\.so(\\.[0-9]+)?" soname ${library})
  install(PROGRAMS ${library} DESTINATION glade/lib COMPONENT python RENAME ${soname})
endforeach()
