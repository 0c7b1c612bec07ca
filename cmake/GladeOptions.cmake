# C++ standard, warnings, the processor to build for, sanitizers and the compiler cache.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# The same object files for every clone of the project, wherever it lies; and what ccache must be told of precompiled headers.
# What a source includes is known from the compiler's dependency file: sources that are not in the cache are read once.
find_program(CCACHE ccache)
if(CCACHE)
  foreach(language C CXX CUDA)
    if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
      set(CMAKE_${language}_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
          CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
    endif()
  endforeach()
endif()

# "auto" is x86-64-v3 (AVX2, FMA) where this machine has it, so that a build can move between recent machines.
set(GLADE_CPU_ARCH auto CACHE STRING "Value for -march: auto, native, x86-64-v3, ... or empty for the compiler's default")
set(GLADE_SANITIZE "" CACHE STRING "Sanitizers to build with, as for -fsanitize=: address,undefined")

set(GLADE_MARCH "${GLADE_CPU_ARCH}")
if(GLADE_CPU_ARCH STREQUAL "auto")
  set(GLADE_MARCH "")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND EXISTS /proc/cpuinfo)
    file(READ /proc/cpuinfo cpuinfo LIMIT 8192)
    if(cpuinfo MATCHES " avx2 " AND cpuinfo MATCHES " fma " AND cpuinfo MATCHES " bmi2 ")
      set(GLADE_MARCH "x86-64-v3")
    endif()
  endif()
endif()

# Sources named *_avx2.cpp and *_avx512.cpp are compiled for these instruction sets, whatever GLADE_CPU_ARCH is: what is in
# them runs only where the processor has them. Other processors than x86-64 do without.
function(glade_instruction_sets sources)
  set(arch_avx2 x86-64-v3)
  set(arch_avx512 x86-64-v4)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER ${sources} EXCLUDE REGEX "_(avx2|avx512)\\.cpp$")
  endif()
  foreach(source ${${sources}})
    if(source MATCHES "_(avx2|avx512)\\.cpp$")
      set(vectors ${CMAKE_MATCH_1})
      set(options -march=${arch_${vectors}})
      # Vectors of 64 bytes are not aligned in the stack frames with which AddressSanitizer finds uses after return (GCC 12).
      if(GLADE_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND vectors STREQUAL "avx512")
        list(APPEND options --param=asan-use-after-return=0)
      endif()
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
  set(${sources} ${${sources}} PARENT_SCOPE)
endfunction()

# Common options of every target of the project. No errno and no traps from math functions, or loops with them cannot be
# vectorised; NaN and infinity keep their meaning. -Wrestrict is wrong about std::string in GCC 12 (PR 105651).
function(glade_target_options target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> -fno-math-errno -fno-trapping-math>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${GLADE_MARCH}>>:-march=${GLADE_MARCH}>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${GLADE_WERROR}>>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${GLADE_WERROR}>>:-Werror=all-warnings>)
  if(GLADE_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${GLADE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
    target_link_options(${target} PRIVATE -fsanitize=${GLADE_SANITIZE})
  endif()
endfunction()

# Makes `target` export only the symbols that the version script cmake/`script` names.
function(glade_export_only target script)
  set(script ${PROJECT_SOURCE_DIR}/cmake/${script})
  target_link_options(${target} PRIVATE LINKER:--version-script=${script})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${script})
endfunction()

# Headers of other libraries that most sources of a target include, compiled once. None of glade's: a change of one would then
# compile everything again. The sources include what they need all the same.
function(glade_precompile target)
  list(TRANSFORM ARGN REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:<\\1$<ANGLE-R>>")
  target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()

# For code that no kernel is in, such as tests: in a release build the compiler's time counts more than the program's.
function(glade_quick_build target)
  target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
endfunction()
