#pragma once
// The kernels of simd_cpu.h in vectors of GLADE_SIMD_BYTES bytes, for the file that includes this. Everything here and in the
// files it includes is local to that file, and no function of the standard library is used: what other files share must not be
// compiled for instructions that only some processors have.
#include <glade/ops/linear_attention/simd_chunks.h>
#include <glade/ops/linear_attention/simd_steps.h>

namespace glade::cpu {

namespace {

template <class F>
constexpr SimdKernels<F> kKernels{
    .multiply = multiply<F>,
    .transpose = transpose<F>,
    .stream_rows = stream_rows<F>,
    .exponentials = exponentials<F>,
    .forward_steps = forward_steps<F>,
    .advance = advance<F>,
    .backward_steps = backward_steps<F>,
    .channel_decays = channel_decays<F>,
    .scale_rows = scale_rows<F>,
    .scale_columns = scale_columns<F>,
    .multiply_elements = multiply_elements<F>,
    .divide_elements = divide_elements<F>,
    .sum_products = sum_products<F>,
    .gate_gradients = gate_gradients<F>,
    .complete_gradients = complete_gradients<F>,
};

}  // namespace

}  // namespace glade::cpu
