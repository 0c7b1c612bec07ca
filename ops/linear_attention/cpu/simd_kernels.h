#pragma once
// The kernels of cpu/simd.h with vectors of GLADE_SIMD_BYTES bytes, for the source file that includes this header. All of it is
// local to that source file, and it uses no function of the standard library: the linker could otherwise keep an inline function
// that was compiled for instructions that not every processor has, and use it for the whole program.
#include <glade/ops/linear_attention/cpu/simd_chunks.h>
#include <glade/ops/linear_attention/cpu/simd_steps.h>

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
