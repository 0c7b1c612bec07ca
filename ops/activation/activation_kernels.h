#pragma once
// Kernels of the activations. No operand is empty.
#include <glade/core/float16.h>
#include <glade/core/generator.h>
#include <glade/core/loops.h>
#include <glade/core/rounded_math.h>
#include <glade/core/tensor.h>

namespace glade {

struct Swiglu {
  template <class T>
  GLADE_HOST_DEVICE compute_t<T> operator()(T gate, T up) const {
    return math::rounded_silu<T>(compute_t<T>(gate)) * compute_t<T>(up);
  }
};

namespace cpu {
/// The plan's operands are out, gate, up.
void swiglu(const LoopPlan<3>& plan, const Tensor& out, const Tensor& gate, const Tensor& up);
/// The plan's operands are grad_gate, grad_up, grad, gate, up; it has at most two dimensions, and inner strides of 1.
void swiglu_backward(const LoopPlan<5>& plan, const Tensor& grad_gate, const Tensor& grad_up, const Tensor& grad,
                     const Tensor& gate, const Tensor& up);
/// Of row-major tensors. Element i is kept where number i % 4 of counter state.offset + i / 4 is at least p.
void dropout(const Tensor& out, const Tensor& x, double p, Generator::State state);
}  // namespace cpu

namespace cuda {
void swiglu(const LoopPlan<3>& plan, const Tensor& out, const Tensor& gate, const Tensor& up);
void swiglu_backward(const LoopPlan<5>& plan, const Tensor& grad_gate, const Tensor& grad_up, const Tensor& grad,
                     const Tensor& gate, const Tensor& up);
void dropout(const Tensor& out, const Tensor& x, double p, Generator::State state);
}  // namespace cuda

}  // namespace glade
