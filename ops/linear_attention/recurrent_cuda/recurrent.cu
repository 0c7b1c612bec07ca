#include <glade/ops/linear_attention/recurrent_cuda/recurrent.h>

#include <glade/ops/linear_attention/common/chunk_gradients.h>
#include <glade/ops/linear_attention/recurrent_cuda/gate_gradients.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda::recurrent {

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

/// A pass with the keys or the values as inner channels, and the gates and the state's strides that go with that. `group`: heads
/// of r that share gates.
template <class F>
Pass<F> make_pass(const Recurrence& r, std::int64_t checkpoint_interval, bool keys_inside, bool reverse_scan, const Rows& c,
                  const Rows& d, const Rows& e, std::int64_t group = 1) {
  const Rows gk = rows(r, r.gk, r.K, 1, group), gv = rows(r, r.gv, r.V);
  Pass<F> pass{};
  pass.rows[kC] = c;
  pass.rows[kD] = d;
  pass.rows[kE] = e;
  pass.rows[kInnerGate] = keys_inside ? gk : gv;
  pass.rows[kOuterGate] = keys_inside ? gv : gk;
  pass.head_gate = rows(r, r.g, 1, 1, group);
  pass.gamma = pointer<const F>(r.g_gamma);
  pass.gamma_step = static_cast<int>(r.gamma_step());
  pass.heads = static_cast<int>(r.heads);
  pass.sequences = {linear_attention::sequences(r), checkpoint_interval};
  pass.reverse_scan = reverse_scan;
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
void run(const Pass<F>& pass, AttentionKernels kernels, const RecurrentPassPlan& plan, Device device) {
  if constexpr (std::is_same_v<F, float>)
    if (kernels == AttentionKernels::few_tokens) return run_few_tokens<T>(pass, plan, device);
  if constexpr (std::is_same_v<T, float>)
    if (kernels == AttentionKernels::float_chunks) return run_float_chunks(pass, plan, device);
  if constexpr (std::is_same_v<F, float>)
    if (kernels == AttentionKernels::warp_chunks) return run_warp_chunks<T>(pass, plan, device);
  run<F, T>(pass, plan, device);
}

template <class F, class T>
void forward(const AttentionPlan& plan, const Recurrence& r, const Tensor& o, const Tensor& given_state) {
  const bool is_step = plan.forward.kernels == AttentionKernels::decode_step;  // it stores the state in any case
  const Tensor final_state =
      is_step && !given_state.defined() ? empty({r.sequences, r.heads, r.K, r.V}, {r.state_dtype(), r.q.device()}) : given_state;
  const Rows q = rows(r, r.q, r.K, r.scale), k = rows(r, r.k, r.K, 1, r.group()), v = rows(r, r.v, r.V, 1, r.group());
  constexpr std::int64_t kNoCheckpoints = 1;
  Pass<F> pass = make_pass<F>(r, kNoCheckpoints, true, false, q, k, v);
  pass.final = {pointer<F>(final_state), r.heads * r.K * r.V, 0};
  pass.out = o.raw_data();
  pass.out_dtype = o.dtype();
  if (is_step) run_step<F, T>(pass, r.q.device());
  else run<F, T>(pass, plan.forward.kernels, plan.forward.recurrent, r.q.device());
}

template <class F, class T>
SegmentEffect segment(const AttentionPlan& plan, const Recurrence& r) {
  const TensorOptions options{r.state_dtype(), r.q.device()};
  const Tensor added = empty({r.sequences, r.heads, r.K, r.V}, options),
               decay = empty({r.sequences, r.heads, r.K + r.V}, options);
  constexpr std::int64_t kNoCheckpoints = 1;
  Pass<F> pass = make_pass<F>(r, kNoCheckpoints, true, false, rows(r, {}, r.K), rows(r, r.k, r.K, 1, r.group()),
                              rows(r, r.v, r.V, 1, r.group()));
  pass.initial = {};
  pass.final = {pointer<F>(added), r.heads * r.K * r.V, 0};
  pass.segment_decays = pointer<F>(decay);
  run<F, T>(pass, plan.forward.kernels, plan.forward.recurrent, r.q.device());
  return {added, slice(decay, 2, 0, r.gk.defined() ? r.K : 1), r.gv.defined() ? slice(decay, 2, r.K, r.K + r.V) : Tensor()};
}

/// Two passes with the same inner channels: a forward scan for the gradient of the query (or for the output again) and a reverse
/// scan for that of the key (or the value); and the gradients of the gates that follow from both. Undefined tensors are not
/// wanted.
struct ScanPair {
  AttentionKernels kernels;
  const RecurrentPassPlan& plan;
  bool keys_inside;
  Rows forward_scan[3], reverse_scan[3];  // c, d and e
  Rows x, y;                              // see GateGradients
  Tensor forward_out, reverse_out;
  Tensor channel, head, gamma;  // gradients of gates
  Tensor initial_state;         // its gradient
  std::int64_t gate_group = 1;  // heads that share gates

  bool wants_gates() const { return channel.defined() || head.defined() || gamma.defined(); }
  /// Whether the reverse scan sums up their terms, in strips of channels.
  bool sums_gates() const { return wants_gates() && kernels == AttentionKernels::warp_chunks; }
  std::int64_t strips() const { return (x.size + kStripChannels - 1) / kStripChannels; }
};

/// What both scans leave for the gradients of the gates.
template <class F>
struct GateBuffers {
  Tensor past_x, past_y, states, products, sums;

  GateBuffers(const Recurrence& r, const ScanPair& pair, const Sequences& sequences, bool has_final_gradient) {
    if (!pair.wants_gates()) return;
    const auto buffer = [&](std::int64_t values) { return empty({values}, {dtype_of<F>(), r.q.device()}); };
    const std::int64_t rows = r.tokens * r.heads, checkpoints = sequences.checkpoints(r.tokens) * r.heads;
    past_x = buffer(rows * pair.x.size);
    if (!pair.sums_gates()) past_y = buffer(rows * pair.x.size);
    else if (pair.head.defined() || pair.gamma.defined()) sums = buffer(rows * pair.strips());
    products = buffer(checkpoints * pair.x.size);
    const bool last_alone = sequences.length <= sequences.interval;  // all checkpoints are sequences' last positions
    if (last_alone && !has_final_gradient) fill_data(products, 0);
    else states = buffer(checkpoints * pair.plan.checkpoint_size());
  }
};

/// The states of all scans forward, and of all reverse ones.
struct KeptStates {
  SegmentStates forward, reverse;
};

template <class F, class T>
void run_pair(const Recurrence& r, std::int64_t checkpoint_interval, const ScanPair& pair, const Tensor& grad_final_state,
              KeptStates& kept) {
  const Device device = r.q.device();
  const auto scan = [&](bool reverse, const Rows(&rows)[3]) {
    return make_pass<F>(r, checkpoint_interval, pair.keys_inside, reverse, rows[0], rows[1], rows[2], pair.gate_group);
  };
  Pass<F> forward = scan(false, pair.forward_scan), reverse = scan(true, pair.reverse_scan);
  const GateBuffers<F> buffers(r, pair, forward.sequences, grad_final_state.defined());
  forward.kept = &kept.forward;
  reverse.kept = &kept.reverse;
  forward.past = pointer<F>(buffers.past_x);
  reverse.past = pointer<F>(buffers.past_y);
  forward.states = reverse.states = pointer<F>(buffers.states);
  reverse.products = pointer<F>(buffers.products);
  const auto set = [](const Tensor& x, void*& data, DType& dtype) {
    if (!x.defined()) return;
    data = x.raw_data();
    dtype = x.dtype();
  };
  forward.for_gates = reverse.for_gates = pair.wants_gates();
  if (pair.sums_gates()) {
    reverse.y = pair.y;
    reverse.past_x = forward.past;
    reverse.gate_sums = pointer<F>(buffers.sums);
    reverse.tokens = r.tokens;
    set(pair.channel, reverse.gate, reverse.gate_dtype);
  }
  if (pair.forward_out.defined()) {
    forward.out = pair.forward_out.raw_data();
    forward.out_dtype = pair.forward_out.dtype();
  }
  if (forward.out != nullptr || forward.past != nullptr) run<F, T>(forward, pair.kernels, pair.plan, device);

  Tensor of_heads = pair.reverse_out;  // before the sum over the heads that share a key or value
  if (pair.reverse_out.defined()) {
    if (r.group() > 1) of_heads = empty({r.tokens, r.kv_heads, r.group(), pair.y.size}, {dtype_of<F>(), device});
    reverse.out = of_heads.raw_data();
    reverse.out_dtype = of_heads.dtype();
  }
  reverse.initial = {pointer<const F>(grad_final_state), r.heads * r.K * r.V, 0};
  reverse.final = {pointer<F>(pair.initial_state), r.heads * r.K * r.V, 0};
  if (reverse.out != nullptr || pair.wants_gates() || reverse.final.data != nullptr)
    run<F, T>(reverse, pair.kernels, pair.plan, device);
  if (pair.reverse_out.defined() && r.group() > 1)
    copy_data(pair.reverse_out, reshape(sum(of_heads, {2}), pair.reverse_out.shape()));

  if (!pair.wants_gates()) return;
  GateGradients<F> gates{pair.x, pair.y, forward.past, reverse.past, reverse.products, forward.sequences, forward.heads};
  if (pair.sums_gates()) {
    gates.sums = reverse.gate_sums;
    gates.strips = static_cast<int>(pair.strips());
    gates.tokens = r.tokens;
  } else {
    set(pair.channel, gates.channel, gates.channel_dtype);
  }
  set(pair.head, gates.head, gates.head_dtype);
  gates.gamma = pointer<F>(pair.gamma);
  run(gates, device);
}

/// States [.., heads, K, V] with parts of the values as heads of their own.
Tensor states_of_parts(const Tensor& x, const Recurrence& split, std::int64_t parts) {
  if (!x.defined()) return x;
  const Tensor apart = reshape(x, {-1, split.heads / parts, split.K, parts, split.V});
  const Shape shape = x.ndim() == 3 ? Shape{split.heads, split.K, split.V} : Shape{x.size(0), split.heads, split.K, split.V};
  return reshape(contiguous_data(permute(apart, {0, 1, 3, 2, 4})), shape);
}

/// dq, dk and the gates' gradients where heads have more values than a kernel sums over: as sums over those of parts of the
/// values, which share keys and gates. Keys have as many heads as queries.
template <class F, class T>
void keys_by_parts(const AttentionPlan::Backward& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
                   const RecurrenceGradients& grads) {
  const std::int64_t parts = plan.value_parts;
  Recurrence split = r;
  split.heads *= parts;
  split.kv_heads *= parts;
  split.V /= parts;
  if (r.g_gamma.defined()) split.g_gamma = repeat_interleave(r.g_gamma, parts, -1);
  split.initial_state = states_of_parts(r.initial_state, split, parts);
  const Rows q = rows(split, r.q, r.K, 1, parts), scaled_q = rows(split, r.q, r.K, r.scale, parts),
             k = rows(split, r.k, r.K, 1, parts), v = rows(split, r.v, split.V), out = rows(split, grad_o, split.V),
             scaled_out = rows(split, grad_o, split.V, r.scale);
  const auto room = [&](const Tensor& wanted, std::int64_t rows, std::int64_t size) {
    return wanted.defined() ? empty({rows, split.heads, size}, {dtype_of<F>(), r.q.device()}) : Tensor();
  };
  ScanPair keys{plan.kernels,
                plan.values_inner,
                false,
                {scaled_out, v, k},
                {v, out, scaled_q},
                q,
                k,
                room(grads.q, r.tokens, r.K),
                room(grads.k, r.tokens, r.K),
                room(grads.gk, r.tokens, r.K),
                room(grads.g, r.tokens, 1),
                room(grads.g_gamma, r.sequences, 1),
                {},
                parts};
  KeptStates kept;
  run_pair<F, T>(split, plan.checkpoint_interval, keys, states_of_parts(grad_final_state, split, parts), kept);
  for (const auto& [of_parts, sum] : {std::pair(keys.forward_out, grads.q),
                                      {keys.reverse_out, grads.k},
                                      {keys.channel, grads.gk},
                                      {keys.head, grads.g},
                                      {keys.gamma, grads.g_gamma}})
    if (sum.defined()) linear_attention::sum_heads(of_parts, sum);
}

template <class F, class T>
void backward(const AttentionPlan::Backward& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const RecurrenceGradients& grads) {
  const Rows q = rows(r, r.q, r.K), scaled_q = rows(r, r.q, r.K, r.scale), k = rows(r, r.k, r.K, 1, r.group()),
             v = rows(r, r.v, r.V, 1, r.group()), out = rows(r, grad_o, r.V), scaled_out = rows(r, grad_o, r.V, r.scale);
  ScanPair keys{plan.kernels, plan.values_inner, false, {scaled_out, v, k}, {v, out, scaled_q}, q, k, grads.q, grads.k, grads.gk,
                grads.g,      grads.g_gamma,     {}};
  ScanPair values{
      plan.kernels, plan.keys_inner, true, {scaled_q, k, v}, {k, scaled_q, out}, out, v, {}, grads.v, grads.gv, {}, {}, {}};
  const bool values_run = values.reverse_out.defined() || values.wants_gates(), by_parts = plan.value_parts > 1;
  (values_run || by_parts ? values : keys).initial_state = grads.initial_state;
  KeptStates kept;
  if (by_parts) keys_by_parts<F, T>(plan, r, grad_o, grad_final_state, grads);
  else run_pair<F, T>(r, plan.checkpoint_interval, keys, grad_final_state, kept);
  run_pair<F, T>(r, plan.checkpoint_interval, values, grad_final_state, kept);
}

}  // namespace

void forward(const AttentionPlan& plan, const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  visit_types(r, [&]<class F, class T>() { forward<F, T>(plan, r, o, final_state); });
}

SegmentEffect segment(const AttentionPlan& plan, const Recurrence& r) {
  SegmentEffect effect;
  visit_types(r, [&]<class F, class T>() { effect = segment<F, T>(plan, r); });
  return effect;
}

void backward(const AttentionPlan& plan, const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state,
              const RecurrenceGradients& grads) {
  visit_types(r, [&]<class F, class T>() { backward<F, T>(plan.backward, r, grad_o, grad_final_state, grads); });
}

}  // namespace glade::cuda::recurrent
