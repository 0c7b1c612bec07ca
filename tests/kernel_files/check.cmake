# What globs and file names give to the files of kernels, checked: the hash that makes tunings valid covers them, and those for
# wider vectors are compiled for them.
#   cmake -DROOT=... -DHASHED=list of files -DCOMMANDS=compile_commands.json -P check.cmake
cmake_minimum_required(VERSION 3.25)
function(report message)
  message(SEND_ERROR "${message}")  # the script goes on, and fails
endfunction()

file(READ ${HASHED} hashed)
file(GLOB_RECURSE kernels ${ROOT}/ops/*.cu ${ROOT}/ops/*.cuh ${ROOT}/ops/*_cpu.cpp ${ROOT}/ops/linear_attention/cpu/*
     ${ROOT}/ops/linear_attention/plan*.cpp ${ROOT}/core/cuda/*.cuh)
list(LENGTH kernels count)
if(count LESS 60)
  report("only ${count} files of kernels found")
endif()
foreach(kernel ${kernels})
  if(NOT kernel IN_LIST hashed)
    report("${kernel} is not in the kernels' hash")
  endif()
endforeach()

file(READ ${COMMANDS} commands)
foreach(folder core ops nn)  # not the whole root: it holds build folders
  file(GLOB_RECURSE files ${ROOT}/${folder}/*_avx2.cpp ${ROOT}/${folder}/*_avx512.cpp)
  list(APPEND vector_files ${files})
endforeach()
string(JSON last LENGTH "${commands}")
math(EXPR last "${last} - 1")
set(checked 0)
foreach(i RANGE ${last})
  string(JSON file GET "${commands}" ${i} file)
  string(JSON command GET "${commands}" ${i} command)
  if(file IN_LIST vector_files AND command MATCHES "/glade\\.dir/")  # fuzzers compile some of them once more
    string(REGEX MATCH "_avx(2|512)\\.cpp$" match "${file}")
    set(arch x86-64-v3)
    if(CMAKE_MATCH_1 STREQUAL "512")
      set(arch x86-64-v4)
    endif()
    string(FIND "${command}" "-march=" at REVERSE)  # the last one counts
    string(SUBSTRING "${command}" ${at} -1 rest)
    if(NOT rest MATCHES "^-march=${arch} ")
      report("${file} is not compiled for ${arch}: ${command}")
    endif()
    math(EXPR checked "${checked} + 1")
  endif()
endforeach()
list(LENGTH vector_files expected)
if(NOT checked EQUAL expected OR checked EQUAL 0)
  report("${checked} of ${expected} files for AVX2 and AVX-512 are compiled")
endif()
message(STATUS "${count} files of kernels in the hash, ${checked} compiled for wider vectors")
