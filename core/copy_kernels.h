#pragma once
// The kernels behind copy_data and fill_data.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <glade/core/loops.h>

namespace glade {

/// x as a To: to bool by x != 0, to integers by truncation (uint8 wraps around), to the 16-bit floats by way of float32.
/// Real numbers outside an integer type's range give an unspecified value.
template <class To, class From>
struct Convert {
  GLADE_HOST_DEVICE To operator()(From from) const {
    const auto x = static_cast<compute_t<From>>(from);
    if constexpr (std::is_same_v<To, bool>) return x != 0;
    else if constexpr (std::is_same_v<To, std::uint8_t>) return static_cast<To>(static_cast<std::int32_t>(x));
    else return static_cast<To>(static_cast<compute_t<To>>(x));
  }
};

namespace cpu {
/// dst = src, broadcast and converted; both on this device, dst not empty.
void copy_strided(const Tensor& dst, const Tensor& src);
void fill(const Tensor& dst, Scalar value);
}  // namespace cpu

namespace cuda {
void copy_strided(const Tensor& dst, const Tensor& src);
/// The same for elements of `size` bytes over a plan whose operands are dst and src.
void copy_bits(Device device, LoopPlan<2> plan, std::size_t size, void* dst, const void* src);
void fill(const Tensor& dst, Scalar value);
/// Between GPUs, or between a GPU and the host, after the work queued on the current streams of both. The caller may use the
/// host's memory at once, for which this waits unless copy_staged() takes the bytes; if `asynchronous`, that memory must be
/// pinned and outlive the copy.
void copy_bytes(void* dst, Device dst_device, const void* src, Device src_device, std::size_t bytes, bool asynchronous);
}  // namespace cuda

}  // namespace glade
