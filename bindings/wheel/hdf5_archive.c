/* What lets libglade.so of a wheel hold Debian's libhdf5.a: see cmake/GladeWheel.cmake. */
#include <hdf5.h>
#include <stdio.h>

/* The archive is compiled for programs: it reads stdout and stderr at fixed distances, where a shared library has to look up
   their addresses. The linker (--wrap) sends these reads here. */
extern FILE *__real_stdout, *__real_stderr;
FILE *__wrap_stdout, *__wrap_stderr;

__attribute__((constructor(101))) static void copy_standard_streams(void) {
  __wrap_stdout = __real_stdout;
  __wrap_stderr = __real_stderr;
}

/* Takes the place of the driver for files in S3, and so keeps it out of the library, with libcurl and OpenSSL. */
hid_t H5FD_ros3_init(void) { return H5I_INVALID_HID; }
