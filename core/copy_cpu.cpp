#include <glade/core/copy_kernels.h>
#include <glade/core/cpu_loops.h>

namespace glade::cpu {

namespace {

template <class T>
struct Identity {
  T operator()(T x) const { return x; }
};

template <class T>
void copy_bits(const Tensor& dst, const Tensor& src) {
  elementwise(plan_loop(dst.shape(), dst, src), Identity<T>{}, static_cast<T*>(dst.raw_data()),
              static_cast<const T*>(src.raw_data()));
}

}  // namespace

void copy_strided(const Tensor& dst, const Tensor& src) {
  if (dst.dtype() == src.dtype()) {  // one loop for each element size, not for each type
    switch (dtype_size(dst.dtype())) {
      case 1: return copy_bits<std::uint8_t>(dst, src);
      case 2: return copy_bits<std::uint16_t>(dst, src);
      case 4: return copy_bits<std::uint32_t>(dst, src);
      default: return copy_bits<std::uint64_t>(dst, src);
    }
  }
  const auto plan = plan_loop(dst.shape(), dst, src);
  visit_all(dst.dtype(), [&](auto to) {
    visit_all(src.dtype(), [&](auto from) {
      using To = typename decltype(to)::type;
      using From = typename decltype(from)::type;
      if constexpr (!std::is_same_v<To, From>) elementwise(plan, Convert<To, From>{}, dst.data<To>(), src.data<From>());
    });
  });
}

void fill(const Tensor& dst, Scalar value) {
  visit_all(dst.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T x = value.to<T>();
    elementwise(plan_loop(dst.shape(), dst), [x] { return x; }, dst.data<T>());
  });
}

}  // namespace glade::cpu
