#pragma once
// Kernels of the activations. No operand is empty.
#include <glade/core/draw.h>
#include <glade/core/float16.h>
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

/// From the gradient of its result to those of gate and up.
template <class T>
GLADE_HOST_DEVICE GLADE_INLINE void swiglu_gradients(compute_t<T> dy, compute_t<T> gate, compute_t<T> up, compute_t<T>& grad_gate,
                                                     compute_t<T>& grad_up) {
  const compute_t<T> s = math::rounded_sigmoid<T>(gate), scaled = dy * s;
  grad_gate = scaled * up * (1 + gate * (1 - s));
  grad_up = scaled * gate;
}

/// logsigmoid(x) / normalizer.
template <class T>
struct NormalizedLogsigmoid {
  compute_t<T> factor;  ///< 1 / normalizer
  GLADE_HOST_DEVICE compute_t<T> operator()(T x) const { return math::rounded_logsigmoid<T>(compute_t<T>(x)) * factor; }
};
/// From the gradient and x: d logsigmoid(x) / dx is sigmoid(-x).
template <class T>
struct NormalizedLogsigmoidBackward {
  compute_t<T> factor;
  GLADE_HOST_DEVICE compute_t<T> operator()(T grad, T x) const {
    return compute_t<T>(grad) * math::rounded_sigmoid<T>(-compute_t<T>(x)) * factor;
  }
};

namespace cpu {
void normalized_logsigmoid(const Tensor& out, const Tensor& x, double normalizer);
void normalized_logsigmoid_backward(const Tensor& dx, const Tensor& grad, const Tensor& x, double normalizer);
/// The plan's operands are out, gate, up.
void swiglu(const LoopPlan<3>& plan, const Tensor& out, const Tensor& gate, const Tensor& up);
/// The plan's operands are grad_gate, grad_up, grad, gate, up; it has at most two dimensions, and inner strides of 1. Where
/// `again`, swiglu's result is left in grad's place.
void swiglu_backward(const LoopPlan<5>& plan, const Tensor& grad_gate, const Tensor& grad_up, const Tensor& grad,
                     const Tensor& gate, const Tensor& up, bool again);
/// Of row-major tensors. Element i is kept where number i % 4 of counter offset + i / 4 of the place is at least p.
void dropout(const Tensor& out, const Tensor& x, double p, const Draw& place);
}  // namespace cpu

namespace cuda {
void normalized_logsigmoid(const Tensor& out, const Tensor& x, double normalizer);
void normalized_logsigmoid_backward(const Tensor& dx, const Tensor& grad, const Tensor& x, double normalizer);
void swiglu(const LoopPlan<3>& plan, const Tensor& out, const Tensor& gate, const Tensor& up);
void swiglu_backward(const LoopPlan<5>& plan, const Tensor& grad_gate, const Tensor& grad_up, const Tensor& grad,
                     const Tensor& gate, const Tensor& up, bool again);
void dropout(const Tensor& out, const Tensor& x, double p, const Draw& place);

// Products with swiglu in them, of matrices of one 16-bit dtype whose rows and columns begin at multiples of 16 bytes; row-major
// but for grad_gate and grad_up, with gaps between their rows. One kernel on GPUs of compute capability 9.0, else several.
/// gate = x gate_weight^T, up = x up_weight^T, values = swiglu(gate, up).
void swiglu_products(const Tensor& gate, const Tensor& up, const Tensor& values, const Tensor& x, const Tensor& gate_weight,
                     const Tensor& up_weight);
/// swiglu_backward for the gradient grad weight, with `again` in `values`.
void swiglu_backward_product(const Tensor& grad_gate, const Tensor& grad_up, const Tensor& values, const Tensor& grad,
                             const Tensor& weight, const Tensor& gate, const Tensor& up);
}  // namespace cuda

}  // namespace glade
