// The chunk form on Hopper: a Recurrence as passes (chunk_sm90/pass.h).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/intra_chunk.h>
#include <glade/ops/linear_attention/chunk_sm90/pass.h>
#include <glade/ops/linear_attention/common/segments.h>
#include <glade/ops/shape/shape.h>

namespace glade::cuda::chunk_sm90 {

namespace {

constexpr std::int64_t kChunk = 64;

template <class T = void>
T* pointer(const Tensor& x) {
  return x.defined() ? static_cast<T*>(x.raw_data()) : nullptr;
}

std::int64_t tiles(std::int64_t channels) { return (channels + kChunk - 1) / kChunk; }

/// Whether the passes are those for heads whose decay is the same at every step (chunk_sm90/constant_decay.cuh).
bool has_constant_decay(const Recurrence& r) {
  constexpr std::int64_t kMostTokens = std::numeric_limits<int>::max();
  const bool sizes = std::min(r.K, r.V) > kChunk && std::max(r.K, r.V) <= 2 * kChunk && r.tokens > 0 && r.tokens <= kMostTokens;
  return sizes && !r.g.defined() && !r.gk.defined() && !r.reverse;
}

void run_constant_decay(const Recurrence& r, std::span<const Pass> passes) {
  const auto run = r.q.dtype() == DType::bfloat16 ? run_constant_decay_passes<__nv_bfloat16> : run_constant_decay_passes<__half>;
  run(passes, r.tokens, r.sizes.sequence_split, r.q.device());
}

/// Whether states are computed apart from the results, by walks (chunk_sm90/state_scan.cuh); after them the backward pass takes
/// all chunks side by side (chunk_sm90/intra_chunk.cuh).
bool uses_state_scan(const Recurrence& r) {
  // There are blocks for as many chunks of every sequence as the longest has: most should find one.
  constexpr std::int64_t kMostBlocks = 65535, kBlocksForOne = 4;
  const std::int64_t chunks = tiles(r.length), slots = r.tokens / kChunk + r.sequences;
  return r.gk.defined() && r.K <= 2 * kChunk && chunks <= kMostBlocks && r.sequences * chunks <= kBlocksForOne * slots;
}

/// Blocks of one direction's walks through whole sequences, with one tile of keys each.
std::int64_t state_scan_blocks(const Recurrence& r) { return tiles(r.K) * ((tiles(r.V) + 1) / 2) * r.heads * r.sequences; }

void run_state_scans(const Recurrence& r, Pass up, const Pass& down) {
  if (r.sequences == 0) return;
  // Measured: with one tile of keys blocks are faster, and find room in pairs, but so many of them are not.
  up.wide_blocks = 2 * state_scan_blocks(r) * (up.run_segments + down.run_segments) > 3 * multiprocessor_count(r.q.device());
  (r.q.dtype() == DType::bfloat16 ? run_state_scan<__nv_bfloat16> : run_state_scan<__half>)(up, down, stream(r.q.device()));
}

/// The passes of one recurrence, on its stream. Where there are too few heads to fill the GPU the sequences are taken in parts:
/// first what each part adds to the state, then the parts side by side.
class Passes {
 public:
  enum class Role { forward, values, keys };  ///< the latter two backward
  /// For passes over rows of w and y of so many channels, in `least_segments` parts at least. Where `gate_gradients`, gates have
  /// gradients.
  Passes(const Recurrence& r, std::int64_t outer, std::int64_t inner, bool gate_gradients, Role role,
         std::int64_t least_segments = 1)
      : Passes(r) {
    const bool narrow = role == Role::keys && gate_gradients;  // only passes over the states can be wide
    const std::int64_t chunks = tiles(r.length), blocks = tiles(outer) * r.heads * r.sequences;
    const std::int64_t fill = multiprocessor_count(r.q.device());
    // Measured: more launches and the pass over the states pay in sequences from these lengths on, backward in shorter ones.
    constexpr std::int64_t kShortest = 12, kShortestOfFour = 8, kShortestSegment = 4, kTwoTiles = 2 * kChunk;
    std::int64_t most_segments = chunks < kShortest ? 1 : chunks / kShortestSegment;
    if (role != Role::forward && chunks >= kShortestOfFour) most_segments = std::max<std::int64_t>(most_segments, 4);
    const std::int64_t shortest_of_two = inner > kTwoTiles && !narrow ? 64 : role == Role::forward ? 32 : 16;
    // A multiprocessor has one block at a time. Measured: a wide one takes 1.3 times as long with gates a channel and 1.5
    // without, so it pays where it saves turns. Where blocks fill no turn, but sequences are split in any case, wide ones do less
    // in all.
    const auto waves = [fill](std::int64_t n) { return (n + fill - 1) / fill; };
    const bool saves_waves =
        10 * waves(blocks) > (r.gk.defined() ? 13 : 15) * waves((tiles(outer) + 1) / 2 * r.heads * r.sequences);
    base_.wide_blocks = outer > kChunk &&
                 (inner > kTwoTiles ? r.gk.defined() : saves_waves || (2 * blocks <= fill && blocks * most_segments >= 2 * fill));
    std::int64_t segments = std::min((base_.wide_blocks && !narrow ? 2 : 1) * fill / std::max<std::int64_t>(blocks, 1), most_segments);
    if (segments < (chunks < kShortest ? 4 : chunks < shortest_of_two ? 3 : 2)) segments = 1;
    divide(std::max(segments, least_segments));
  }
  /// For other kernels, in so many parts.
  Passes(const Recurrence& r, std::int64_t segments) : Passes(r) { divide(segments); }

  Rows rows(const Tensor& x) const {
    const std::int64_t heads = x.size(-2);
    return {x.raw_data(), static_cast<int>(heads), static_cast<int>(r_.heads / heads), static_cast<int>(x.size(-1))};
  }
  /// States from which passes start, in memory as [.., K, V], and where they are to be left after them (or null).
  struct State {
    const float* first;
    bool is_shared;
    float* last;
    float* segment_states;  ///< before the other parts
  };
  /// For o and dv: rows of w are values.
  Pass value_pass(const Tensor& x, const Tensor& y, const Tensor& w, bool backward) const {
    Pass p = pass(x, y, w, backward);
    p.gates_are_inner = true;
    p.outer_stride = 1;
    p.inner_stride = static_cast<int>(r_.V);
    return p;
  }
  /// For dq and dk: rows of w are keys or queries.
  Pass key_pass(const Tensor& x, const Tensor& y, const Tensor& w, bool backward) const {
    Pass p = pass(x, y, w, backward);
    p.outer_stride = static_cast<int>(r_.V);
    p.inner_stride = 1;
    return p;
  }

  /// Room for the states before each part; undefined where there is only one.
  Tensor allocate_segment_states() const {
    return segments() == 1 ? Tensor() : empty({r_.sequences, segments(), r_.heads, r_.K, r_.V}, {DType::float32, r_.q.device()});
  }
  /// Adds the states before each part, made from y and w, where there is more than one; in `room` if that is defined.
  State find_segment_states(const Tensor& y, const Tensor& w, State state, bool backward, const Tensor& room = {}) {
    if (segments() == 1) return state;
    state.segment_states = pointer<float>(room.defined() ? room : keep(allocate_segment_states()));
    Pass p = start_from(state, value_pass(y, y, w, backward));
    p.x.data = nullptr;
    p.last = nullptr;
    p.keeps_states = p.from_zeros = true;
    p.first_segment = backward ? 1 : 0;
    p.run_segments = p.segments - 1;
    const int channels = r_.gk.defined() ? static_cast<int>(r_.K) : 1;
    if (segments() > 2)
      p.decay = pointer<float>(keep(empty({r_.sequences * segments(), r_.heads, channels}, {DType::float32, r_.q.device()})));
    launch(p);
    if (segments() > 2)
      linear_attention::join_segments({p.segment_states, p.decay, r_.sequences, p.segments, p.heads, channels,
                                       static_cast<int>(r_.K), static_cast<int>(r_.V)},
                                      stream_);
    return state;
  }
  /// From `state`, to `out` [.., heads, outer], which may be undefined.
  Pass complete(Pass p, const State& state, const Tensor& out) const {
    p = start_from(state, p);
    if (out.defined()) {
      p.out = out.raw_data();
      p.float_out = out.dtype() == DType::float32;
      p.out_step = reshape(out, {r_.tokens, r_.heads, p.outer}).strides()[0];
    }
    return p;
  }
  void run(Pass p, const State& state, const Tensor& out) const { launch(complete(p, state, out)); }
  /// A backward pass of another division over these parts, one after the other; returns the states that it finds before each.
  State run_in_turn(Pass p, State state, const Tensor& out) {
    state.segment_states = pointer<float>(keep(allocate_segment_states()));
    p.segments = base_.segments;
    p.segment_chunks = base_.segment_chunks;
    p.run_segments = 1;
    p.keeps_states = true;
    for (p.first_segment = p.segments - 1; p.first_segment >= 0; --p.first_segment) run(p, state, out);
    return state;
  }
  IntraChunk apart(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& grad_o) const {
    IntraChunk a{};
    a.q = rows(q);
    a.k = rows(k);
    a.v = rows(v);
    a.grad_o = rows(grad_o);
    a.g = base_.g;
    a.gk = base_.gk;
    a.float_gates = base_.float_gates;
    a.g_gamma = base_.g_gamma;
    a.gamma_step = base_.gamma_step;
    a.cu_seqlens = base_.cu_seqlens;
    a.sequences = r_.sequences;
    a.length = r_.length;
    a.tokens = r_.tokens;
    a.heads = base_.heads;
    a.reverse = base_.reverse;
    a.scale = base_.scale;
    return a;
  }
  /// From `state`, leaving the states at the borders of chunks made from y and w.
  Pass scan(const Tensor& y, const Tensor& w, const State& state, bool backward, const Tensor& boundary_states) const {
    Pass p = start_from(state, value_pass(y, y, w, backward));
    p.boundary_states = boundary_states.raw_data();
    return p;
  }
  std::int64_t segments() const { return base_.segments; }
  std::int64_t slots() const { return r_.tokens / kChunk + r_.sequences; }
  /// Memory that lives as long as this.
  Tensor keep(const Tensor& x) { return kept_.emplace_back(x); }

 private:
  explicit Passes(const Recurrence& r) : r_(r), stream_(stream(r.q.device())) {
    base_.g = pointer(r.g);
    base_.gk = pointer(r.gk);
    const Tensor& gates = r.gk.defined() ? r.gk : r.g;
    base_.float_gates = gates.defined() && gates.dtype() == DType::float32;
    base_.g_gamma = pointer<const float>(r.g_gamma);
    base_.gamma_step = static_cast<int>(r.gamma_step());
    base_.cu_seqlens = pointer<const std::int64_t>(r.cu_seqlens);
    base_.sequences = r.sequences;
    base_.length = r.length;
    base_.heads = static_cast<int>(r.heads);
    base_.reverse = r.reverse;
    base_.scale = static_cast<float>(r.scale);
  }
  /// Into so many parts, if the caller of the operation wants no other number.
  void divide(std::int64_t segments) {
    const std::int64_t chunks = tiles(r_.length), split = r_.sizes.sequence_split,
                       most = kMostBlocks / std::max<std::int64_t>(r_.sequences, 1);
    segments = std::max<std::int64_t>(split != 0 ? std::min({split, chunks, most}) : segments, 1);
    base_.segments = base_.run_segments = static_cast<int>(segments);
    base_.segment_chunks = static_cast<int>((chunks + segments - 1) / segments);
  }

  static Pass start_from(const State& state, Pass p) {
    p.first = state.first;
    p.first_is_shared = state.is_shared;
    p.last = state.last;
    p.segment_states = state.segment_states;
    return p;
  }
  Pass pass(const Tensor& x, const Tensor& y, const Tensor& w, bool backward) const {
    Pass p = base_;
    p.x = rows(x);
    p.y = rows(y);
    p.w = rows(w);
    p.inner = p.y.size;
    p.outer = p.w.size;
    p.backward = backward;
    return p;
  }
  void launch(const Pass& p) const {
    if (p.sequences == 0) return;
    constexpr int kShortestScan = 12;  // chunks; measured: in shorter parts the pass is faster
    if (!p.out && uses_state_scan(r_) && p.segment_chunks >= kShortestScan) {
      Pass none = p;
      none.run_segments = 0;
      return p.backward ? run_state_scans(r_, none, p) : run_state_scans(r_, p, none);
    }
    const bool bfloat16 = r_.q.dtype() == DType::bfloat16;
    bfloat16 ? run_pass<__nv_bfloat16>(p, stream_) : run_pass<__half>(p, stream_);
  }

  const Recurrence& r_;
  const cudaStream_t stream_;
  Pass base_{};
  std::vector<Tensor> kept_;
};

Passes::State first_state(const Recurrence& r, const Tensor& last) {
  return {pointer<const float>(r.initial_state), r.initial_state.defined() && r.initial_state.ndim() == 3, pointer<float>(last),
          nullptr};
}

}  // namespace

bool take(const RecurrenceShape& shape) {
  constexpr std::int64_t kLargest = 256, kMultiple = 8;
  return (shape.dtype == DType::bfloat16 || shape.dtype == DType::float16) && has_hopper_kernels(shape.device) &&
         std::max(shape.K, shape.V) <= kLargest && shape.K % kMultiple == 0 && shape.V % kMultiple == 0;
}

namespace {

/// For dv, and for dq and dk.
struct BackwardPasses {
  Passes values, keys;

  BackwardPasses(const Recurrence& r, bool gate_gradients)
      : values(r, r.V, r.K, gate_gradients, Passes::Role::values,
               gate_gradients && few_heads(r) && r.length >= 8 * kChunk ? 4 : 1),
        keys(r, r.K, r.V, gate_gradients, Passes::Role::keys, values.segments()) {}

 private:
  /// Measured: with gates parts pay in shorter sequences than forward, where four of them find room.
  static bool few_heads(const Recurrence& r) {
    return 4 * tiles(r.K) * r.heads * r.sequences <= multiprocessor_count(r.q.device());
  }
};

}  // namespace

Tensor allocate_segment_states(const Recurrence& r) {
  if (has_constant_decay(r)) return {};
  // Measured: where the backward pass takes sequences in parts, results in as many cost little more than its states made again.
  const std::int64_t segments = uses_state_scan(r) ? 1 : BackwardPasses(r, r.g.defined()).keys.segments();
  return Passes(r, r.V, r.K, false, Passes::Role::forward, segments).allocate_segment_states();
}

void forward(const Recurrence& r, const Tensor& o, const Tensor& final_state) {
  const std::int64_t segments = r.states.defined() ? r.states.size(1) : 1;
  Passes passes = has_constant_decay(r) ? Passes(r, 1) : Passes(r, r.V, r.K, false, Passes::Role::forward, segments);
  Pass pass = passes.value_pass(r.q, r.k, r.v, false);
  Passes::State state = first_state(r, final_state);
  if (has_constant_decay(r)) {
    pass = passes.complete(pass, state, o);
    return run_constant_decay(r, {&pass, 1});
  }
  state = passes.find_segment_states(r.k, r.v, state, false, r.states);
  passes.run(pass, state, o);
}

bool computes_values_separately(const Recurrence& r) {
  if (uses_state_scan(r) || has_constant_decay(r)) return false;
  const BackwardPasses passes(r, r.g.defined() || r.gk.defined());
  return passes.values.segments() == 1 && passes.keys.segments() == 1;
}

namespace {

/// How many parts sequences have for the walks to the chunks' borders.
std::int64_t scan_segments(const Recurrence& r) {
  const std::int64_t chunks = tiles(r.length), blocks = state_scan_blocks(r), fill = multiprocessor_count(r.q.device());
  // Measured: both directions together take all that the memory has with fewer blocks than multiprocessors, and in shorter
  // sequences finding out what parts add takes longer than they save.
  constexpr std::int64_t kShortest = 24, kShortestSegment = 4;
  if (blocks == 0 || 5 * blocks >= 2 * fill || chunks < std::max(kShortest, 2 * blocks)) return 1;
  return r.states.defined() ? r.states.size(1) : std::min(fill / blocks, chunks / kShortestSegment);
}

/// From the states at the borders of chunks.
void backward_by_chunks(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const Gradients& grads) {
  Passes passes(r, scan_segments(r));
  Passes::State first = first_state(r, {}),
                last{pointer<const float>(grad_final_state), false, pointer<float>(grads.initial_state), nullptr};
  if (r.states.defined() && r.states.size(1) == passes.segments()) first.segment_states = pointer<float>(r.states);
  else first = passes.find_segment_states(r.k, r.v, first, false);
  last = passes.find_segment_states(r.q, grad_o, last, true);
  const Shape shape{passes.slots(), r.heads, tiles(r.K), tiles(r.V), kChunk * kChunk};
  const Tensor before = empty(shape, r.q.options()), after = empty(shape, r.q.options());
  run_state_scans(r, passes.scan(r.k, r.v, first, false, before), passes.scan(r.q, grad_o, last, true, after));

  auto result = [&](const Tensor& out, std::int64_t size) {
    if (!out.defined()) return IntraChunk::Result{};
    return IntraChunk::Result{out.raw_data(), out.dtype() == DType::float32,
                              reshape(out, {r.tokens, r.heads, size}).strides()[0]};
  };
  IntraChunk a = passes.apart(r.q, r.k, r.v, grad_o);
  a.boundary_states = {before.raw_data(), after.raw_data()};
  a.dq = result(grads.q, r.K);
  a.dk = result(grads.k, r.K);
  a.dv = result(grads.v, r.V);
  a.dgk = pointer(grads.dgk);
  a.dg = pointer<float>(grads.dg);
  (r.q.dtype() == DType::bfloat16 ? run_intra_chunk<__nv_bfloat16> : run_intra_chunk<__half>)(a, stream(r.q.device()));
}

/// Where no gate has a gradient.
void backward_constant_decay(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const Gradients& grads) {
  const Passes passes(r, 1);
  const Passes::State first = first_state(r, {}),
                      last{pointer<const float>(grad_final_state), false, pointer<float>(grads.initial_state), nullptr};
  Passes::State inner = last;
  inner.last = nullptr;
  std::vector<Pass> wanted;
  if (grads.q.defined()) wanted.push_back(passes.complete(passes.key_pass(grad_o, r.v, r.k, false), first, grads.q));
  Tensor dv = grads.v;
  if (!dv.defined() && last.last) dv = empty({r.tokens, r.heads, r.V}, r.q.options());
  if (dv.defined()) wanted.push_back(passes.complete(passes.value_pass(r.k, r.q, grad_o, true), last, dv));
  if (grads.k.defined()) wanted.push_back(passes.complete(passes.key_pass(r.v, grad_o, r.q, true), inner, grads.k));
  run_constant_decay(r, wanted);
}

}  // namespace

void backward(const Recurrence& r, const Tensor& grad_o, const Tensor& grad_final_state, const Gradients& grads) {
  const bool gates = grads.dgk.defined() || grads.dg.defined(), gate_gradients = gates || r.gk.defined();
  const bool with_q = gates || grads.q.defined(), with_k = gates || grads.k.defined();
  if (uses_state_scan(r) && (with_q || with_k)) return backward_by_chunks(r, grad_o, grad_final_state, grads);
  if (has_constant_decay(r) && !gate_gradients) return backward_constant_decay(r, grad_o, grad_final_state, grads);
  auto [values, keys] = BackwardPasses(r, gate_gradients);
  const Passes::State last_state{pointer<const float>(grad_final_state), false, pointer<float>(grads.initial_state), nullptr};
  Passes::State state = last_state;  // for dk: as the pass for dv finds it, or leaves it
  const Pass dv = values.value_pass(r.k, r.q, grad_o, true);
  const bool with_v = grads.v.defined() || last_state.last;
  if (with_v && with_k && values.segments() == 1 && keys.segments() > 1) {
    state = keys.run_in_turn(dv, last_state, grads.v);
  } else {
    if (with_v || (with_k && keys.segments() == values.segments()))
      state = values.find_segment_states(r.q, grad_o, last_state, true);
    if (with_v) values.run(dv, state, grads.v);
    if (with_k && keys.segments() != values.segments()) state = keys.find_segment_states(r.q, grad_o, last_state, true);
  }
  state.last = nullptr;
  if (!with_q && !with_k) return;

  Pass dq = keys.key_pass(grad_o, r.v, r.k, false), dk = keys.key_pass(r.v, grad_o, r.q, true);
  if (gate_gradients) {
    const std::int64_t K_tiles = tiles(r.K), inner = pass_channels(r.V);
    const Tensor boundary_states = keys.keep(empty({keys.slots(), r.heads, K_tiles, kChunk * inner}, r.q.options()));
    const Shape per_token{K_tiles, r.tokens, r.heads}, per_channel{keys.slots(), r.heads, K_tiles, kChunk * kChunk};
    const Tensor u_out = keys.keep(empty(r.gk.defined() ? per_channel : per_token, {DType::float32, r.q.device()}));
    dq.boundary_states = dk.boundary_states = boundary_states.raw_data();
    dq.u_out = dk.u_out = pointer<float>(u_out);
    dq.u = keys.rows(r.q);
    dk.u = keys.rows(r.k);
    dk.dgk = pointer(grads.dgk);
    dk.dg = pointer<float>(grads.dg);
  }
  if (with_q) {
    const Tensor grad = grads.q.defined() ? grads.q : keys.keep(empty_like(r.q));
    Passes::State before = first_state(r, {});
    if (r.states.defined() && r.states.size(1) == keys.segments()) before.segment_states = pointer<float>(r.states);
    else before = keys.find_segment_states(r.k, r.v, before, false);
    keys.run(dq, before, grad);
  }
  if (with_k) {
    const Tensor grad = grads.k.defined() ? grads.k : keys.keep(empty({r.tokens, r.heads, r.K}, r.q.options()));
    keys.run(dk, state, grad);
  }
}

}  // namespace glade::cuda::chunk_sm90
