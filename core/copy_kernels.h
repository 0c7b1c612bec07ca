#pragma once
// The kernels behind copy_data and fill_data.
#include <glade/core/tensor.h>

namespace glade {

namespace cpu {
/// dst = src, broadcast and converted; both on this device, dst not empty.
void copy_strided(const Tensor& dst, const Tensor& src);
void fill(const Tensor& dst, Scalar value);
}  // namespace cpu

namespace cuda {
void copy_strided(const Tensor& dst, const Tensor& src);
void fill(const Tensor& dst, Scalar value);
/// Between devices, or between a device and the host; waits unless `asynchronous`.
void copy_bytes(void* dst, Device dst_device, const void* src, Device src_device, std::size_t bytes, bool asynchronous);
}  // namespace cuda

}  // namespace glade
