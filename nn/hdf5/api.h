#pragma once
// HDF5's interface, the same from 1.10 to 1.14.
#define H5_USE_110_API
#include <hdf5.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif
