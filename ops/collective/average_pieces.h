#pragma once
// What a reduction over ranks computes where copies bring the values. Not public.
#include <glade/core/tensor.h>

namespace glade {

/// out [n] = the average of the `ranks` rows of pieces [ranks * n], summed in their order. Floating dtypes. Not recorded.
void average_pieces(const Tensor& out, const Tensor& pieces, int ranks);

namespace cuda {
void average_pieces(const Tensor& out, const Tensor& pieces, int ranks);
}  // namespace cuda

}  // namespace glade
