// What masks select. On the CPU the places are written out; a GPU finds them as it reads and writes.
#include <glade/autograd/node.h>
#include <glade/core/dispatch.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/elementwise/inplace.h>
#include <glade/ops/index/index.h>
#include <glade/ops/index/index_kernels.h>
#include <glade/ops/random/random.h>
#include <glade/ops/shape/shape.h>

namespace glade {

namespace {

/// A row-major mask on a GPU, and what count_held() says of it.
struct Held {
  Tensor holds, before;
  std::int64_t count = 0;
};

Held held(const Tensor& mask) {
  Held result{contiguous_data(mask.detach()), {}, 0};
  result.before = GLADE_DISPATCH_CUDA(count_held, result.holds, &result.count);
  return result;
}

Tensor select_held(const Tensor& x, const Held& mask);

/// The derivative of select_held: zeros with the elements of y where the mask holds.
Tensor place_held(const Tensor& y, const Held& mask) {
  Tensor x = zeros(mask.holds.shape(), y.options());
  if (mask.count > 0) GLADE_DISPATCH_CUDA(masked_place, x, contiguous_data(y), mask.holds, mask.before);
  autograd::record("place_held", x, {&y},
                   [mask](const autograd::Node&, const Tensor& grad) { return Tensors{select_held(grad, mask)}; });
  return x;
}

/// The elements of x, which has the mask's shape. Nobody else may change the mask where x requires a gradient.
Tensor select_held(const Tensor& x, const Held& mask) {
  Tensor y = empty({mask.count}, x.options());
  if (mask.count > 0) GLADE_DISPATCH_CUDA(masked_select, y, contiguous_data(x), mask.holds, mask.before);
  autograd::record("masked_select", y, {&x},
                   [mask](const autograd::Node&, const Tensor& grad) { return Tensors{place_held(grad, mask)}; });
  return y;
}

void check_mask(const char* operation, const Tensor& mask) {
  if (mask.dtype() != DType::boolean) fail<DTypeError>("{}: mask is {}: expected bool", operation, mask.dtype());
}

Tensor row_of(const Tensor& x) { return reshape(x, {-1}); }
Tensor places_of(const Tensor& mask) { return select(nonzero(row_of(mask)), 1, 0); }

}  // namespace

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check_mask("masked_select", mask);
  check_same_device("masked_select", {{"x", &x}, {"mask", &mask}});
  const Shape shape = broadcast_shapes(x.shape(), mask.shape(), "masked_select");
  if (x.is_cpu()) return index_select(row_of(expand(x, shape)), 0, places_of(expand(mask, shape)));
  Held selected = held(expand(mask, shape));
  if (autograd::any_requires_grad({&x}) && selected.holds.storage() == mask.storage()) selected.holds = clone(selected.holds);
  return select_held(expand(x, shape), selected);
}

const Tensor& masked_assign_(const Tensor& x, const Tensor& mask, const Tensor& source) {
  check_in_place("masked_assign_", x, {&source});
  check_mask("masked_assign_", mask);
  check_same_device("masked_assign_", {{"x", &x}, {"mask", &mask}, {"source", &source}});
  if (!(mask.shape() == x.shape()))
    fail<ShapeError>("masked_assign_: mask is {}: expected x's shape {}", mask.shape(), x.shape());
  if (is_integral(x.dtype()) && is_floating(source.dtype()))
    fail<DTypeError>("masked_assign_: {} values would be truncated in a tensor of {}", source.dtype(), x.dtype());
  if (source.numel() == 1 && source.ndim() <= 1) return masked_fill_(x, mask, reshape(source.detach(), {}));

  const Tensor places = x.is_cpu() ? places_of(mask.detach()) : Tensor();
  Held chosen = x.is_cpu() ? Held{{}, {}, places.numel()} : held(mask);
  if (!(source.shape() == Shape{chosen.count}))
    fail<ShapeError>("masked_assign_: a source of shape {} does not broadcast to the {} elements at which the mask holds",
                     source.shape(), chosen.count);
  if (chosen.count == 0) return x;
  const Tensor values = detail::row_major_apart(x, to_data(source.detach(), x.dtype()));
  if (!x.is_cpu() && chosen.holds.storage() == x.storage()) chosen.holds = clone(chosen.holds);
  detail::change_row_major(x.detach(), [&](const Tensor& target) {
    if (x.is_cpu()) cpu::put(target, values, places, {1, x.numel(), chosen.count, 1, true});
    else GLADE_DISPATCH_CUDA(masked_place, target, values, chosen.holds, chosen.before);
  });
  return x;
}

}  // namespace glade
