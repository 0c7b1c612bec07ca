# What `cmake --install` puts under the prefix: the library, the public headers and the package for find_package(glade).
include(CMakePackageConfigHelpers)

# Headers that only glade's own sources include.
set(GLADE_INTERNAL_HEADERS "kernels\\.h$|/nn/hdf5\\.h$|/cuda$|/autograd/accumulate\\.h$|/core/(accumulate|allocator|cpu_loops|dispatch|format|loops|math|parallel|philox)\\.h$")
install(FILES glade.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/glade)
foreach(folder ${GLADE_FOLDERS})
  install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/glade
          FILES_MATCHING PATTERN "*.h" REGEX "${GLADE_INTERNAL_HEADERS}" EXCLUDE)
endforeach()

install(TARGETS glade EXPORT gladeTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/glade)
install(EXPORT gladeTargets NAMESPACE glade:: DESTINATION ${package_folder})
# The library is shared and its headers need the standard library alone: there are no dependencies to find.
configure_package_config_file(cmake/gladeConfig.cmake.in gladeConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(gladeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gladeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/gladeConfigVersion.cmake
        DESTINATION ${package_folder})
