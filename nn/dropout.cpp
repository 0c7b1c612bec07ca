#include <glade/nn/dropout.h>

#include <glade/core/format.h>
#include <glade/ops/activation/activation.h>

namespace glade::nn {

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p <= 1)) fail<ValueError>("Dropout: p is {}, expected a value in [0, 1]", p);
}

Tensor Dropout::forward(const Tensor& x) const { return dropout(x, p_, training()); }

}  // namespace glade::nn
