#pragma once
// From an operation to its kernel on a device. A family declares its kernels twice, in glade::cpu and glade::cuda, with
// the same names and parameters; GLADE_DISPATCH picks one, inside a range of its name for profiles. A macro, because a build
// without CUDA must not even name the CUDA symbol. GLADE_DISPATCH_CUDA is for kernels that only CUDA has.
#include <glade/core/device.h>
#include <glade/core/error.h>
#include <glade/core/profile.h>

namespace glade::detail {
[[noreturn]] void throw_no_cuda();
template <class Result>
Result no_cuda() {
  throw_no_cuda();
}
}  // namespace glade::detail

#if defined(GLADE_WITH_CUDA)
#define GLADE_DISPATCH(device, kernel, ...)                       \
  (::glade::ProfileRange(::glade::RangeKind::operation, #kernel), \
   (device).is_cpu() ? cpu::kernel(__VA_ARGS__) : cuda::kernel(__VA_ARGS__))
#define GLADE_DISPATCH_CUDA(kernel, ...) \
  (::glade::ProfileRange(::glade::RangeKind::operation, #kernel), cuda::kernel(__VA_ARGS__))
#else
#define GLADE_DISPATCH(device, kernel, ...)                       \
  (::glade::ProfileRange(::glade::RangeKind::operation, #kernel), \
   (device).is_cpu() ? cpu::kernel(__VA_ARGS__) : ::glade::detail::no_cuda<decltype(cpu::kernel(__VA_ARGS__))>())
#define GLADE_DISPATCH_CUDA(kernel, ...) ::glade::detail::no_cuda<decltype(cuda::kernel(__VA_ARGS__))>()
#endif
