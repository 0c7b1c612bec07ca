// The recurrent form on the GPU: which passes a forward and a backward call consist of.
#include <glade/ops/linear_attention/kernels.h>
#include <glade/ops/linear_attention/recurrent_cuda/gate_gradients.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda {

using namespace recurrent;

namespace {

/// Rows of `size` channels for the heads of r, of which `group` share one.
Rows rows(const Recurrence& r, const Tensor& x, std::int64_t size, double factor = 1, std::int64_t group = 1) {
  Rows result;
  result.size = static_cast<int>(size);
  result.heads = static_cast<int>(r.heads / group);
  result.group = static_cast<int>(group);
  result.factor = factor;
  if (!x.defined()) return result;
  result.data = x.raw_data();
  result.dtype = x.dtype();
  return result;
}

template <class T>
T* pointer(const Tensor& x) {
  return x.defined() ? x.data<std::remove_const_t<T>>() : nullptr;
}

recurrent::Sequences sequences(const Recurrence& r) {
  constexpr std::int64_t tile = 32;  // a checkpoint is the last position of a kernel's tile, which has that many at most
  const std::int64_t interval = (std::min(r.checkpoint_interval, std::max<std::int64_t>(r.length, 1)) + tile - 1) / tile * tile;
  return {pointer<const std::int64_t>(r.cu_seqlens), r.sequences, r.length, interval, r.reverse};
}

/// A pass with the keys or the values as inner channels, and the gates and the state's strides that go with that.
template <class F>
Pass<F> make_pass(const Recurrence& r, bool keys_inside, bool reverse_scan, const Rows& c, const Rows& d, const Rows& e) {
  const Rows gk = rows(r, r.gk, r.K), gv = rows(r, r.gv, r.V);
  Pass<F> pass{};
  pass.rows[kC] = c;
  pass.rows[kD] = d;
  pass.rows[kE] = e;
  pass.rows[kInnerGate] = keys_inside ? gk : gv;
  pass.rows[kOuterGate] = keys_inside ? gv : gk;
  pass.head_gate = rows(r, r.g, 1);
  pass.gamma = pointer<const F>(r.g_gamma);
  pass.gamma_step = static_cast<int>(r.gamma_step());
  pass.heads = static_cast<int>(r.heads);
  pass.sequences = sequences(r);
  pass.reverse_scan = reverse_scan;
  pass.warps = static_cast<int>(r.sizes.warps);
  pass.most_segments = static_cast<int>(std::min<std::int64_t>(r.sizes.sequence_split, r.length));
  pass.inner_stride = keys_inside ? r.V : 1;
  pass.outer_stride = keys_inside ? 1 : r.V;
  if (!reverse_scan) {
    const bool shared = r.initial_state.defined() && r.initial_state.ndim() == 3;
    pass.initial = {pointer<const F>(r.initial_state), shared ? 0 : r.heads * r.K * r.V, 0};
  }
  return pass;
}

/// Calls f with the types of the state and of the rows.
template <class Function>
void visit_types(const Recurrence& r, Function f) {
  switch (r.q.dtype()) {
    case DType::float64: return f.template operator()<double, double>();
    case DType::bfloat16: return f.template operator()<float, bfloat16>();
    case DType::float16: return f.template operator()<float, float16>();
    default: return f.template operator()<float, float>();
  }
}

template <class F, class T>
void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  const Rows q = rows(r, r.q, r.K, r.scale), k = rows(r, r.k, r.K, 1, r.group()), v = rows(r, r.v, r.V, 1, r.group());
  Pass<F> pass = make_pass<F>(r, true, false, q, k, v);
  pass.final = {pointer<F>(final_state), r.heads * r.K * r.V, 0};
  pass.out = o.raw_data();
  pass.out_dtype = o.dtype();
  if (r.length == 1 && !r.cu_seqlens.defined() && r.heads <= kMostBlocks) run_step<F, T>(pass, r.q.device());
  else run<F, T>(pass, r.q.device());
}

/// Half of the backward pass: two passes with the same inner channels, upwards for the gradient of the query (or for the
/// output again) and downwards for that of the key (or the value), and the gradients of the gates that follow from both.
/// Undefined tensors are not wanted.
struct Half {
  bool keys_inside;
  Rows forward_scan[3], reverse_scan[3];  // c, d and e
  Rows x, y;                              // see GateGradients
  Tensor forward_out, reverse_out;
  Tensor channel, head, gamma;  // gradients of gates
  Tensor initial_state;         // its gradient

  bool wants_gates() const { return channel.defined() || head.defined() || gamma.defined(); }
};

template <class F, class T>
void run_half(const Recurrence& r, const Half& half, const Tensor& grad_final_state) {
  const Device device = r.q.device();
  auto buffer = [&](std::int64_t values) { return empty({values}, {dtype_of<F>(), device}); };
  Pass<F> forward_scan =
      make_pass<F>(r, half.keys_inside, false, half.forward_scan[0], half.forward_scan[1], half.forward_scan[2]);
  Pass<F> reverse_scan =
      make_pass<F>(r, half.keys_inside, true, half.reverse_scan[0], half.reverse_scan[1], half.reverse_scan[2]);
  Tensor past_x, past_y, states, products;
  if (half.wants_gates()) {
    const std::int64_t rows = r.tokens * r.heads, checkpoints = forward_scan.sequences.checkpoints(r.tokens) * r.heads;
    past_x = buffer(rows * half.x.size);
    past_y = buffer(rows * half.x.size);
    states = buffer(checkpoints * checkpoint_size(forward_scan));
    products = buffer(checkpoints * half.x.size);
    forward_scan.past = past_x.data<F>();
    reverse_scan.past = past_y.data<F>();
    forward_scan.states = reverse_scan.states = states.data<F>();
    reverse_scan.products = products.data<F>();
  }
  if (half.forward_out.defined()) {
    forward_scan.out = half.forward_out.raw_data();
    forward_scan.out_dtype = half.forward_out.dtype();
  }
  if (forward_scan.out != nullptr || forward_scan.past != nullptr) run<F, T>(forward_scan, device);

  Tensor of_heads = half.reverse_out;  // before the sum over the heads that share a key or value
  if (half.reverse_out.defined()) {
    if (r.group() > 1) of_heads = empty({r.tokens, r.kv_heads, r.group(), half.y.size}, {dtype_of<F>(), device});
    reverse_scan.out = of_heads.raw_data();
    reverse_scan.out_dtype = of_heads.dtype();
  }
  reverse_scan.initial = {pointer<const F>(grad_final_state), r.heads * r.K * r.V, 0};
  reverse_scan.final = {pointer<F>(half.initial_state), r.heads * r.K * r.V, 0};
  if (reverse_scan.out != nullptr || reverse_scan.past != nullptr || reverse_scan.final.data != nullptr)
    run<F, T>(reverse_scan, device);
  if (half.reverse_out.defined() && r.group() > 1)
    copy_data(half.reverse_out, reshape(sum(of_heads, {2}), half.reverse_out.shape()));

  if (!half.wants_gates()) return;
  GateGradients<F> gates{
      half.x, half.y, forward_scan.past, reverse_scan.past, reverse_scan.products, forward_scan.sequences, forward_scan.heads};
  auto set = [](const Tensor& x, void*& data, DType& dtype) {
    if (!x.defined()) return;
    data = x.raw_data();
    dtype = x.dtype();
  };
  set(half.channel, gates.channel, gates.channel_dtype);
  set(half.head, gates.head, gates.head_dtype);
  gates.gamma = pointer<F>(half.gamma);
  run(gates, device);
}

template <class F, class T>
void backward(const Recurrence& r, const Tensor& grad, const Tensor& grad_final_state, const RecurrenceGradients& grads) {
  const Tensor grad_o = grad.defined() ? grad : zeros({r.tokens, r.heads, r.V}, {r.q.dtype(), r.q.device()});
  const Rows q = rows(r, r.q, r.K), scaled_q = rows(r, r.q, r.K, r.scale), k = rows(r, r.k, r.K, 1, r.group()),
             v = rows(r, r.v, r.V, 1, r.group()), out = rows(r, grad_o, r.V), scaled_out = rows(r, grad_o, r.V, r.scale);
  Half keys{false, {scaled_out, v, k}, {v, out, scaled_q}, q, k, grads.q, grads.k, grads.gk, grads.g, grads.g_gamma, {}};
  Half values{true, {scaled_q, k, v}, {k, scaled_q, out}, out, v, {}, grads.v, grads.gv, {}, {}, {}};
  const bool values_run = values.reverse_out.defined() || values.wants_gates();
  (values_run ? values : keys).initial_state = grads.initial_state;
  run_half<F, T>(r, keys, grad_final_state);
  run_half<F, T>(r, values, grad_final_state);
}

}  // namespace

void recurrent_forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  const DeviceGuard guard(r.q.device());
  visit_types(r, [&]<class F, class T>() { forward<F, T>(r, o, final_state); });
}

void recurrent_backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                        const RecurrenceGradients& grads) {
  const DeviceGuard guard(r.q.device());
  visit_types(r, [&]<class F, class T>() { backward<F, T>(r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cuda
