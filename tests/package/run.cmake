# cmake -DBUILD=build folder -DWORK=folder to work in -DCXX=compiler -P run.cmake
# Installs glade under WORK, checks what was installed, and builds and runs against it the project beside this file and
# the one that docs/cpp.md shows.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)

# No public header needs one that is not installed, or another library's.
set(include_folder ${WORK}/prefix/include)
file(GLOB_RECURSE headers RELATIVE ${include_folder} ${include_folder}/glade/*.h)
foreach(header ${headers})
  file(STRINGS ${include_folder}/${header} includes REGEX "^ *#include")
  foreach(include ${includes})
    string(REGEX REPLACE ".*<(.*)>.*" "\\1" name "${include}")
    if(NOT name MATCHES "^([a-z_]+|cuda_bf16\\.h|cuda_fp16\\.h)$" AND NOT (name MATCHES "^glade/" AND EXISTS ${include_folder}/${name}))
      message(SEND_ERROR "${header}: ${include} is neither the standard library's nor installed")
    endif()
  endforeach()
endforeach()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=Debug)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
run(${CMAKE_COMMAND} --build ${WORK}/build --parallel ${cores})
run(${WORK}/build/user)

# The project that docs/cpp.md shows, with the program that README.md shows.
set(root ${CMAKE_CURRENT_LIST_DIR}/../..)
file(READ ${root}/docs/cpp.md page)
if(NOT page MATCHES "```cmake\n([^`]*)```")
  message(FATAL_ERROR "docs/cpp.md shows no project")
endif()
file(WRITE ${WORK}/shown/CMakeLists.txt "${CMAKE_MATCH_1}")
file(COPY_FILE ${root}/examples/xor.cpp ${WORK}/shown/program.cpp)
run(${CMAKE_COMMAND} -S ${WORK}/shown -B ${WORK}/shown/build -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_BUILD_TYPE=Debug)
run(${CMAKE_COMMAND} --build ${WORK}/shown/build)
run(${WORK}/shown/build/program)

file(GLOB commands ${WORK}/prefix/bin/*)
foreach(command ${commands})
  run(${command} --help)
endforeach()
