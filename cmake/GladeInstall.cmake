# What `cmake --install` puts under the prefix: the library, the public headers and the package for find_package(glade).
include(CMakePackageConfigHelpers)

# The public headers are those that glade.h brings.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS glade.h)
file(STRINGS glade.h includes REGEX "^#include <glade/")
install(FILES glade.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/glade)
foreach(include ${includes})
  string(REGEX REPLACE "#include <glade/(.*)>" "\\1" header "${include}")
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/glade/${folder})
endforeach()

install(TARGETS glade EXPORT gladeTargets INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/glade)
install(EXPORT gladeTargets NAMESPACE glade:: DESTINATION ${package_folder})
# The library is shared and its headers need the standard library alone: there are no dependencies to find.
configure_package_config_file(cmake/gladeConfig.cmake.in gladeConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(gladeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gladeConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/gladeConfigVersion.cmake
        DESTINATION ${package_folder})
