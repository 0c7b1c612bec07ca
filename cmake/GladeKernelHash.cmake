# Writes kernel_hash.h: a hash of what the speed of a kernel follows from, its sources, compilers and options. Choices that
# were measured with other kernels are no longer looked at.
#   cmake -DOUTPUT=... -DSOURCES="a;b" -DBUILD="..." -P GladeKernelHash.cmake
set(hashes "${BUILD}")
foreach(source ${SOURCES})
  file(SHA256 ${source} hash)
  string(APPEND hashes "${hash}")
endforeach()
string(SHA256 hash "${hashes}")
string(SUBSTRING ${hash} 0 16 hash)
file(WRITE ${OUTPUT} "#define GLADE_KERNEL_HASH \"${hash}\"\n")
