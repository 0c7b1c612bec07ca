// Products with swiglu where their results are made: gate and up are not read again to compute it, and its gradient is never in
// memory.
#include <glade/core/cuda/hopper/copy.cuh>
#include <glade/ops/activation/activation_kernels.h>
#include <glade/ops/matmul/multiply_into.h>
#include <glade/ops/matmul/tile_product.cuh>
#include <glade/ops/shape/shape.h>

namespace glade::cuda {

namespace products {

/// Where a lane's 16 bytes are.
struct Lane {
  int in, row, column;  ///< row in the group's results; row and column of the matrix
  __device__ Lane(const Piece& piece, int width, int turn, int lane)
      : in(piece.first + 4 * turn + lane / 8),
        row(piece.row + 4 * turn + lane / 8),
        column(piece.tile * width + piece.part * kTile + 8 * (lane % 8)) {}
};

/// Of gate and up side by side: both, and swiglu of them.
template <class T>
struct SwigluForward {
  static constexpr int kRowsAreInner = 0, kUsers = 3;
  static constexpr int kWidth = kColumns / 2, kParts = kWidth / kTile;
  T *gate, *up, *values;
  int rows, columns;

  __device__ void fetch(Beside&, const Piece&, int, int) const {}
  __device__ void operator()(Results<T>& results, const Beside&, const Piece& piece, int turn, int lane) const {
    const Lane at(piece, kWidth, turn, lane);
    const auto& x = *reinterpret_cast<const uint4*>(results[piece.part].at(at.in, lane % 8));
    const auto& u = *reinterpret_cast<const uint4*>(results[piece.part + kParts].at(at.in, lane % 8));
    const uint4 y{pair(x.x, u.x), pair(x.y, u.y), pair(x.z, u.z), pair(x.w, u.w)};
    if (at.row >= rows || at.column >= columns) return;
    const std::int64_t to = std::int64_t{at.row} * columns + at.column;
    store_global(gate + to, x);
    store_global(up + to, u);
    store_global(values + to, y);
  }
  __device__ static std::uint32_t pair(std::uint32_t gate, std::uint32_t up) {
    const float2 x = unpack<T>(gate), u = unpack<T>(up);
    return pack<T>(math::rounded_silu<T>(x.x) * u.x, math::rounded_silu<T>(x.y) * u.y);
  }
};

/// Of swiglu's gradient: those of gate and up, and swiglu again.
template <class T>
struct SwigluBackward {
  static constexpr int kRowsAreInner = 1, kUsers = 8;
  static constexpr int kWidth = kColumns, kParts = kWidth / kTile;
  const T *gate, *up;
  T *grad_gate, *grad_up, *values;
  std::int64_t gate_step, up_step;  ///< from row to row of grad_gate and grad_up
  int rows, columns;

  __device__ void fetch(Beside& beside, const Piece& piece, int turn, int lane) const {
    const Lane at(piece, kWidth, turn, lane);
    const bool inside = at.row < rows && at.column < columns;
    const std::int64_t from = inside ? std::int64_t{at.row} * columns + at.column : 0;
    copy_async(&beside[0][lane], gate + from, inside);
    copy_async(&beside[1][lane], up + from, inside);
  }
  __device__ void operator()(Results<T>& results, const Beside& beside, const Piece& piece, int turn, int lane) const {
    const Lane at(piece, kWidth, turn, lane);
    const auto& dy = *reinterpret_cast<const uint4*>(results[piece.part].at(at.in, lane % 8));
    const uint4 &x = beside[0][lane], &u = beside[1][lane];
    uint4 dx, du, y;
    pair(dy.x, x.x, u.x, dx.x, du.x, y.x);
    pair(dy.y, x.y, u.y, dx.y, du.y, y.y);
    pair(dy.z, x.z, u.z, dx.z, du.z, y.z);
    pair(dy.w, x.w, u.w, dx.w, du.w, y.w);
    if (at.row >= rows || at.column >= columns) return;
    store_global(grad_gate + at.row * gate_step + at.column, dx);
    store_global(grad_up + at.row * up_step + at.column, du);
    store_global(values + std::int64_t{at.row} * columns + at.column, y);
  }
  __device__ static void pair(std::uint32_t dy, std::uint32_t gate, std::uint32_t up, std::uint32_t& grad_gate,
                              std::uint32_t& grad_up, std::uint32_t& values) {
    const float2 grad = unpack<T>(dy), x = unpack<T>(gate), u = unpack<T>(up);
    float2 dx, du;
    swiglu_gradients<T>(grad.x, x.x, u.x, dx.x, du.x);
    swiglu_gradients<T>(grad.y, x.y, u.y, dx.y, du.y);
    grad_gate = pack<T>(dx.x, dx.y);
    grad_up = pack<T>(du.x, du.y);
    values = SwigluForward<T>::pair(gate, up);
  }
};

}  // namespace products

namespace {

bool has_tile_products(const Tensor& x) { return has_hopper_kernels(x.device()); }

/// Calls f(T()) for the 16-bit type.
template <class F>
void visit(const Tensor& x, const F& f) {
  DeviceGuard guard(x.device());
  x.dtype() == DType::bfloat16 ? f(bfloat16()) : f(float16());
}

}  // namespace

void swiglu_products(const Tensor& gate, const Tensor& up, const Tensor& values, const Tensor& x, const Tensor& gate_weight,
                     const Tensor& up_weight) {
  if (!has_tile_products(x)) {
    multiply_into(gate, x, transpose(gate_weight, 0, 1));
    multiply_into(up, x, transpose(up_weight, 0, 1));
    return swiglu(plan_loop(gate.shape(), values, gate, up), values, gate, up);
  }
  visit(x, [&]<class T>(T) {
    products::run<T>(products::SwigluForward<T>{gate.data<T>(), up.data<T>(), values.data<T>(), static_cast<int>(gate.size(0)),
                                                static_cast<int>(gate.size(1))},
                     x.data<T>(), {gate_weight.data<T>(), up_weight.data<T>()}, gate.size(0), gate.size(1), x.size(1),
                     x.device());
  });
}

void swiglu_backward_product(const Tensor& grad_gate, const Tensor& grad_up, const Tensor& values, const Tensor& grad,
                             const Tensor& weight, const Tensor& gate, const Tensor& up) {
  if (!has_tile_products(grad)) {
    multiply_into(values, grad, weight);
    return swiglu_backward(plan_loop(gate.shape(), grad_gate, grad_up, values, gate, up), grad_gate, grad_up, values, gate, up,
                           true);
  }
  visit(grad, [&]<class T>(T) {
    products::run<T>(products::SwigluBackward<T>{gate.data<T>(), up.data<T>(), grad_gate.data<T>(), grad_up.data<T>(),
                                                 values.data<T>(), grad_gate.strides()[0], grad_up.strides()[0],
                                                 static_cast<int>(gate.size(0)), static_cast<int>(gate.size(1))},
                     grad.data<T>(), {weight.data<T>(), weight.data<T>()}, gate.size(0), gate.size(1), grad.size(1),
                     grad.device());
  });
}

}  // namespace glade::cuda
