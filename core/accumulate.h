#pragma once
// Adding up tensors of one shape, dtype and device, below the tape. The engine needs it to gather gradients; operations
// with broadcasting and promotion are in ops/elementwise.
#include <glade/core/tensor.h>

namespace glade {

/// out = a + b. out may be a.
void add_data(const Tensor& out, const Tensor& a, const Tensor& b);

namespace cpu {
void add_same(const Tensor& out, const Tensor& a, const Tensor& b);
}
namespace cuda {
void add_same(const Tensor& out, const Tensor& a, const Tensor& b);
}

}  // namespace glade
