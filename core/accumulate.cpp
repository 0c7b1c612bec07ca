#include <glade/core/accumulate.h>

#include <glade/core/cpu_loops.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>

namespace glade {

void add_data(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype() || !(a.device() == b.device()))
    fail<ShapeError>("accumulate: {} {} on {} does not match {} {} on {}", b.dtype(), b.shape(), b.device(), a.dtype(), a.shape(),
                     a.device());
  out.storage()->bump_version();
  GLADE_DISPATCH(out.device(), add_same, out, a, b);
}

namespace cpu {
void add_same(const Tensor& out, const Tensor& a, const Tensor& b) {
  visit_floating(out.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    elementwise(
        plan_loop(out.shape(), out, a, b),
        [](T x, T y) { return T(static_cast<compute_t<T>>(x) + static_cast<compute_t<T>>(y)); }, out.data<T>(), a.data<T>(),
        b.data<T>());
  });
}
}  // namespace cpu

}  // namespace glade
