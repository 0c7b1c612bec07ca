#pragma once
// A pass over the states of small heads on the tensor cores, in chunks of 16 positions. A warp owns 16 columns of a state, all of
// it in its registers, and goes from chunk to chunk. The warps of a block have neighboring columns, and share the rows of a chunk
// in shared memory.
//
// Let a_p and b_p be the sums of the inner and outer log decays of a chunk up to position p, M its middle and E its end. With all
// decays measured from the middle, a forward scan is
//     X' = e^{a_M} X e^{b_M}
//     c'_p = c_p e^{a_p - a_M},    d'_p = d_p e^{a_M - a_p},    e'_p = e_p e^{b_M - b_p}
//     past_p = e^{b_p - b_M} [ c'_p X' + sum_{s<p} (c'_p . d'_s) e'_s ]
//     X = e^{a_E - a_M} [ X' + sum_s d'_s e'_s^T ] e^{b_E - b_M}
// A reverse scan has the opposite signs, and sums over s > p. What is rounded to 16 bits, or in float32 to TF32, for the tensor
// cores keeps the rest in a low part: X', c', d', e' and, with per-channel gates, in float32 and where gates have gradients, the
// products c' . d'. A chunk with large decay (outside of the safe exponent range) is computed step by step. Per-head gates
// multiply scores and results instead, by decays that are at most 1: any are safe but in float32, where decays between positions
// are differences of exponents.
#include <glade/core/format.h>
#include <glade/ops/linear_attention/recurrent_cuda/segments.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/warp_gate_gradients.cuh>

namespace glade::cuda::recurrent::warp_chunks {

template <class V>
struct Warp : WarpGateGradients<V> {
  using State = WarpState<V>;
  using State::channel, State::decay, State::factor, State::load_state, State::multiply_saved, State::save_undecayed,
      State::store_state, State::sums_terms, State::x, State::zero;
  using State::I, State::kTiles, State::kInner, State::kOuter, State::pass, State::memory, State::n, State::h,
      State::block_column, State::segment, State::warp, State::column, State::lane, State::row, State::pair, State::sequence;
  using typename State::E;
  using GatesOf = WarpGates<V>;
  using GatesOf::element_at, GatesOf::find_transposed, GatesOf::gate_at, GatesOf::has_head_gates, GatesOf::head_log,
      GatesOf::head_sums, GatesOf::to_end;
  using GateGradients = WarpGateGradients<V>;
  using GateGradients::add_terms, GateGradients::copy_terms, GateGradients::result_row, GateGradients::result_step,
      GateGradients::start_terms;
  using Products = WarpProducts<V>;
  using Products::collect, Products::decay_scores, Products::multiply_c, Products::multiply_scores, Products::prepare,
      Products::scale, Products::state_decays, Products::sums_up, Products::update, Products::update_and_save;
  using typename GatesOf::HeadSums;
  using typename GatesOf::SegmentDecay;
  using typename Products::OperandE;
  using typename Products::Scores;
  using typename State::StateDecay;
  static constexpr bool kHead = V::kGates == Gates::head;
  using WarpGateGradients<V>::WarpGateGradients;

  // ---- results ----

  /// Stores the sums over other positions, and the results. `self`: what multiplies e at positions `row` and `row` + 8.
  template <bool kWhole>
  __device__ __forceinline__ void store_results(const Chunk& chunk, const float (&past)[2][4], const float (&self)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int position = row + 8 * i, columns = kWhole ? kColumns : position < chunk.count ? pass.outer() - column - pair : 0;
      const std::int64_t to = chunk.results + std::int64_t{i} * chunk.eight_rows;
      const unsigned char* e_row = chunk.rows + V::kE + position * V::kOuterRow + (kColumns * warp + pair) * V::kElementBytes;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (8 * j >= columns) continue;
        const float2 e = row_pair<E>(e_row, 8 * j), own = make_float2(past[j][2 * i], past[j][2 * i + 1]),
                     all = make_float2(own.x + self[i] * e.x, own.y + self[i] * e.y);
        const std::int64_t at = to + 8 * j;
        if (pass.past != nullptr) *reinterpret_cast<float2*>(pass.past + at) = own;
        if (pass.out == nullptr) continue;
        if (V::kIsFloat || pass.out_dtype == DType::float32) {
          *reinterpret_cast<float2*>(static_cast<float*>(pass.out) + at) = all;
        } else if constexpr (!V::kIsFloat) {
          *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(pass.out) + at) = pack<E>(all.x, all.y);
        }
      }
    }
  }

  // ---- chunks ----

  /// Whether `safe` is true for all warps, which have met.
  __device__ static bool all_safe(bool safe) {
    if constexpr (V::kWarps == 1) {
      __syncwarp();
      return __all_sync(~0u, safe);
    }
    return __syncthreads_and(safe);
  }
  __device__ static void sync() {
    if constexpr (V::kWarps == 1) __syncwarp();
    else __syncthreads();
  }

  /// Returns false, and has left the state as it is, if the chunk is to be computed step by step.
  __device__ bool run_chunk(const Chunk& chunk) {
    if (chunk.checkpoint >= 0 && pass.reverse_scan && pass.states != nullptr) multiply_saved(chunk.checkpoint);
    const HeadSums head = head_sums(chunk), none;
    const HeadSums& outer_head = kInner ? none : head;
    const unsigned char* outer_gates = chunk.rows + V::kOuterGates + 16 * V::kGateBytes * warp;
    StateDecay to_middle{state_decays(0), {}}, from_middle{state_decays(1), {}};
    float outer[2][4] = {};
    bool safe = prepare(chunk, head);
    if constexpr (V::kIsFloat && V::kGates != Gates::none)
      safe = safe && (pass.head_gate.data == nullptr || fminf(head.to_middle, head.to_end) >= -Products::kSafeRange);
    if constexpr (kOuter)
      safe = find_transposed(outer, to_middle.outer, from_middle.outer, outer_gates, outer_head) <= Products::kSafeRange && safe;
    if constexpr (kInner || kOuter) safe = all_safe(safe);
    else if constexpr (V::kShareScores) sync();  // all warps know the gates of heads
    if (!safe) return false;                     // before warps part: all must come to the same barriers
    if (column >= pass.outer()) return true;

    if constexpr (kInner || kOuter) decay(to_middle);
    Pair<E> r[4];
    load_matrices<true, false>(r, chunk.rows + V::kE + kColumns * V::kElementBytes * warp, V::kOuterRow);
    OperandE e{{r[0], r[2], r[1], r[3]}, {}};  // transposed: [columns, positions]
    if constexpr (kOuter) scale(e, outer, -1);
    else e.split();
    if (sums_up()) {
      float past[2][4];
      Scores scores;
      multiply_c(past, scores, chunk);
      collect(scores);
      if constexpr (kHead) decay_scores(past, scores.pairs, head);
      multiply_scores(past, scores.pairs, e);
      finish_results(past, scores.self, outer_gates, outer_head);
      if (chunk.whole) store_results<true>(chunk, past, scores.self);
      else store_results<false>(chunk, past, scores.self);
      if (sums_terms()) add_terms(chunk, past);
    }
    if constexpr (kHead) {
      const float all = power_of_2<float>(head.all());
#pragma unroll
      for (auto& four : x)
#pragma unroll
        for (float& element : four) element *= all;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // the decays from the positions to the chunk's end
        const float2 both = e.get(i);
        const auto decay = [&](int t) { return power_of_2<float>(at_most(to_end(head.columns[t], head), 0)); };
        e.set(i, both.x * decay(i / 2 * 2), both.y * decay(i / 2 * 2 + 1));
      }
    } else {
      e = e.copy(zero());
    }
    if (chunk.checkpoint >= 0 && !pass.reverse_scan) update_and_save(chunk, e, from_middle);
    else update(chunk, e);
    if constexpr (kInner || kOuter) decay(from_middle);
    return true;
  }
  /// Multiplies results by what they lack.
  __device__ __forceinline__ void finish_results(float (&past)[2][4], float (&self)[2], const unsigned char* gates,
                                                 const HeadSums& head) const {
    float logs[2][4] = {}, to_middle[4], to_end[4];
    if constexpr (kOuter) this->template find<false>(logs, to_middle, to_end, gates, V::kOuterGateRow, head);
#pragma unroll
    for (int i = 0; i < 8; ++i) past[i / 4][i % 4] *= kOuter ? factor * power_of_2<float>(logs[i / 4][i % 4]) : factor;
#pragma unroll
    for (float& own : self) own *= factor;
  }

  /// Step by step.
  __device__ void run_steps(const Chunk& chunk) {
    const float own_log = has_head_gates() ? head_log(chunk) : 0.f;
    float past[2][4] = {};  // as run_chunk() has them
#pragma unroll 1
    for (int s = 0; s < chunk.count; ++s) {
      const int position = pass.reverse_scan ? chunk.count - 1 - s : s;
      const float shared = __shfl_sync(~0u, own_log, position);
      const unsigned char *inner_gates = chunk.rows + V::kInnerGates + position * V::kGateRow,
                          *outer_gates = chunk.rows + V::kOuterGates + position * V::kOuterGateRow;
      const auto decay_at = [&](const unsigned char* gates, int channel, float log) {
        return power_of_2<float>(gate_at(gates, channel) * kLog2e + log);
      };
      const auto decay = [&] {
        const float together = power_of_2<float>(shared);
        float outer[2] = {1, 1};
        if constexpr (kOuter)
          for (int i = 0; i < 2; ++i) outer[i] = decay_at(outer_gates, kColumns * warp + row + 8 * i, kInner ? 0.f : shared);
#pragma unroll
        for (int k = 0; k < 2 * kTiles; ++k)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float inner = kInner ? decay_at(inner_gates, 8 * k + channel(i), shared) : kOuter ? 1.f : together;
            x[k][i] *= inner * outer[0];
            x[k][2 + i] *= inner * outer[1];
          }
      };
      if (!pass.reverse_scan) {
        decay();
        if (chunk.checkpoint >= 0 && position == chunk.count - 1) save_undecayed(chunk.checkpoint);
      }
      step(chunk, position, past);
      if (pass.reverse_scan) decay();
    }
    if (sums_terms()) add_terms(chunk, past);
  }
  /// A position's results, and its update of the state.
  __device__ __forceinline__ void step(const Chunk& chunk, int position, float (&pasts)[2][4]) {
    const unsigned char *c_row = chunk.rows + V::kC + position * V::kRow, *d_row = chunk.rows + V::kD + position * V::kRow,
                        *e_row = chunk.rows + V::kE + position * V::kOuterRow;
    float sums[2] = {}, e[2], self = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) e[i] = element_at(e_row, kColumns * warp + row + 8 * i);
#pragma unroll
    for (int k = 0; k < 2 * kTiles; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int inner = 8 * k + channel(i);
        const float c = sums_up() ? factor * element_at(c_row, inner) : 0.f, d = element_at(d_row, inner);
        self += c * d;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& element = x[k][2 * j + i];
          sums[j] += c * element;
          element += d * e[j];
        }
      }
    if (!sums_up()) return;
    self = quad_sum(self);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float past = quad_sum(sums[j]);
      if constexpr (V::kGateGradients)
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // of columns `pair` and `pair` + 1
          const float other = __shfl_sync(~0u, past, 4 * (pair + i % 2));
          if (position == row + i / 2 * 8) pasts[j][i] = other;
        }
      const int outer = column + 8 * j + row;
      if (pair != 0 || outer >= pass.outer()) continue;
      const std::int64_t at = result_row(chunk.first + position) + outer;
      if (pass.past != nullptr) pass.past[at] = past;
      if (pass.out != nullptr) store_element(past + self * e[j], pass.out, pass.out_dtype, at);
    }
  }

  // ---- the scan ----

  __device__ void run() {
    const int low = static_cast<int>(segment * pass.segment), high = static_cast<int>(min(low + pass.segment, sequence.length)),
              chunks = uniform((high - low + kTokens - 1) / kTokens);
    if (chunks <= 0 && segment > 0) return;
    // Chunks come in the order of the scan.
    const bool reverse = pass.reverse_scan;
    const int step = reverse ? -kTokens : kTokens;
    int first = low + (reverse ? (chunks - 1) * kTokens : 0);
    using InnerRows = Copier<I, V::kElementBytes, V::kThreads>;
    using OuterRows = Copier<V::kBlockColumns, V::kElementBytes, V::kThreads>;
    using InnerGates = Copier<I, V::kGateBytes, V::kThreads>;
    using OuterGates = Copier<V::kBlockColumns, V::kGateBytes, V::kThreads>;
    InnerRows c(pass.rows[sums_up() ? recurrent::kC : recurrent::kD], h, 0, sequence, first, reverse),
        d(pass.rows[recurrent::kD], h, 0, sequence, first, reverse);
    OuterRows e(pass.rows[recurrent::kE], h, block_column, sequence, first, reverse);
    InnerGates inner_gates(pass.rows[kInnerGate], h, 0, sequence, first, reverse);
    OuterGates outer_gates(pass.rows[kOuterGate], h, block_column, sequence, first, reverse);
    const auto for_each_copier = [&](auto&& f) {
      if (sums_up()) f(c, V::kC);
      f(d, V::kD);
      f(e, V::kE);
      if constexpr (kInner) f(inner_gates, V::kInnerGates);
      if constexpr (kOuter) f(outer_gates, V::kOuterGates);
    };
    bool pieces = has_pieces(pass.rows[recurrent::kD]) && has_pieces(pass.rows[recurrent::kE]);
    if (sums_up()) pieces = pieces && has_pieces(pass.rows[recurrent::kC]);
    if constexpr (kInner) pieces = pieces && has_pieces(pass.rows[kInnerGate]);
    if constexpr (kOuter) pieces = pieces && has_pieces(pass.rows[kOuterGate]);
    for (int i = 0; i < V::kStages; ++i)
      for_each_copier([&](auto& copier, int at) { copier.clear(memory + i * V::kStageBytes + at); });
    int next_first = first, next_stage = 0;  // of the next chunk to copy
    const auto copy = [&] {
      const int count = high - next_first;
      unsigned char* to = memory + next_stage;
      if (next_first >= low && count >= kTokens && pieces) for_each_copier([&](auto& copier, int at) { copier.copy(to + at); });
      else if (next_first >= low && count > 0) for_each_copier([&](auto& copier, int at) { copier.copy_any(to + at, count); });
      commit_copies();
      next_first += step;
      next_stage = next_stage == (V::kStages - 1) * V::kStageBytes ? 0 : next_stage + V::kStageBytes;
    };
#pragma unroll 1
    for (int i = 0; i < V::kStages - 1; ++i) copy();
    load_state();
    SegmentDecay segment_decay;
    GateLoader head_gates(pass.head_gate, h, sequence, first, reverse);
    const bool loads_gates = pass.head_gate.data != nullptr && lane < kTokens;
    std::uint32_t next_gate = head_gates.load(loads_gates && chunks > 0 && first + lane < high);
    const bool columns = column + kColumns <= pass.outer();
    const int eight_rows = uniform(static_cast<int>(8 * result_step())),
              results_step = uniform(reverse ? -2 * eight_rows : 2 * eight_rows);
    std::int64_t results = result_row(first + row) + column + pair;
    int stage = 0, i = 0;
    Checkpoints checkpoints(sequence, static_cast<int>(pass.sequences.interval), first);
    if (sums_terms()) start_terms(first, step);
    Chunk chunk;
    /// Computes the next chunks, up to one that is to be computed step by step. Returns whether there is one.
    const auto run_chunks = [&] {
#pragma unroll 1
      for (; i < chunks; ++i) {
        wait_copies<V::kStages - 2>();
        sync();  // all rows are there, and no warp needs those of the chunk before
        const int count = min(high - first, kTokens);
        chunk = {memory + stage, first, count, count == kTokens && columns, results, eight_rows, -1, next_gate};
        if (sums_terms()) copy_terms(chunk);
        copy();
        stage = stage == (V::kStages - 1) * V::kStageBytes ? 0 : stage + V::kStageBytes;
        if (pass.head_gate.data != nullptr)
          next_gate = head_gates.load(loads_gates && first + step >= low && first + step + lane < high);
        if (pass.states != nullptr || sums_terms()) chunk.checkpoint = checkpoints.of_chunk(first);
        if (pass.segment_decays != nullptr) add(segment_decay, chunk);
        first += step, results += results_step;
        if (!run_chunk(chunk)) return true;
      }
      return false;
    };
    while (run_chunks()) {  // seldom, and so outside of the loop over the chunks
      if (column < pass.outer()) run_steps(chunk);
      ++i;
    }
    const bool last = reverse ? low == 0 : high >= sequence.length;
    if (pass.final.data != nullptr && (last || pass.segment_decays != nullptr)) store_state();
    if (pass.segment_decays != nullptr) store(segment_decay);
  }
};

template <class V>
__global__ void __launch_bounds__(V::kThreads, V::kBlocks)
    warp_chunks_kernel(const __grid_constant__ Pass<float> pass, int strips, float factor, float update_factor) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int strip = static_cast<int>(blockIdx.x % strips), head_segment = static_cast<int>(blockIdx.x / strips);
  Warp<V>(pass, memory, head_segment / pass.segments, strip * V::kBlockColumns, head_segment % pass.segments, factor,
          update_factor)
      .run();
}

// ---- launch --------------------------------------------------------------------------------------------------------

template <class V>
void launch(const Pass<float>& pass, int strips, Device device) {
  const auto kernel = warp_chunks_kernel<V>;
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, V::kBytes));
  const unsigned blocks = blocks_for(pass.sequences.count * pass.heads * pass.segments * strips, 1);
  const double update_factor = pass.rows[kD].factor * pass.rows[kE].factor;
  kernel<<<blocks, V::kThreads, V::kBytes, stream(device)>>>(
      pass, strips, static_cast<float>(pass.rows[kC].factor * update_factor), static_cast<float>(update_factor));
  GLADE_CUDA_LAUNCHED();
}

/// A pass with gates.
template <class E, class G, int I, Gates kGates>
void launch_gated(const Pass<float>& pass, int strips, Device device) {
  const bool is_exact = kGates == Gates::head && sizeof(E) == 2 && pass.for_gates;
  if (pass.past_x != nullptr || is_exact) launch<Variant<E, G, I, kGates, true>>(pass, strips, device);
  else launch<Variant<E, G, I, kGates>>(pass, strips, device);
}

template <class E, class G, int I>
void launch(const Pass<float>& pass, int strips, Device device) {
  const bool inner = pass.rows[kInnerGate].data != nullptr, outer = pass.rows[kOuterGate].data != nullptr;
  if (inner && outer) return launch_gated<E, G, I, Gates::both>(pass, strips, device);
  if (inner) return launch_gated<E, G, I, Gates::inner>(pass, strips, device);
  if (outer) return launch_gated<E, G, I, Gates::outer>(pass, strips, device);
  if constexpr (I <= 64 || std::is_same_v<E, float>) {
    const bool head = pass.head_gate.data != nullptr || pass.gamma != nullptr;
    if (head) launch_gated<E, E, I, Gates::head>(pass, strips, device);
    else launch<Variant<E, E, I, Gates::none>>(pass, strips, device);
  } else {
    fail<Error>("recurrent: a plan of {} channels without per-channel gates", I);
  }
}

template <class E, int I>
void run(Pass<float>& pass, const RecurrentPassPlan& plan, Device device) {
  constexpr int kBlockColumns = Variant<E, E, I, Gates::outer>::kBlockColumns;
  if (plan.columns != kBlockColumns || pass.inner() > I)  // plan.cpp and the kernels must agree
    fail<Error>("recurrent: a plan of {} columns and {} channels for small heads", plan.columns, plan.inner);
  const bool float_gates = has_type<float>(pass.rows[kInnerGate]) || has_type<float>(pass.rows[kOuterGate]);  // or all are
  run_in_segments(pass, plan, device, [&](const Pass<float>& segments) {
    (float_gates ? launch<E, float, I> : launch<E, E, I>)(segments, plan.blocks, device);
  });
}

}  // namespace glade::cuda::recurrent::warp_chunks

namespace glade::cuda::recurrent {

template <class T>
void run_warp_chunks(const Pass<float>& pass, const RecurrentPassPlan& plan, Device device) {
  if (pass.sequences.count == 0) return;
  Pass<float> own = pass;
  switch (plan.inner) {
    case 16: return warp_chunks::run<T, 16>(own, plan, device);
    case 32: return warp_chunks::run<T, 32>(own, plan, device);
    case 64: return warp_chunks::run<T, 64>(own, plan, device);
    default: return warp_chunks::run<T, 128>(own, plan, device);
  }
}

}  // namespace glade::cuda::recurrent
