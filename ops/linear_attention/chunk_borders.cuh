#pragma once
// The states at the borders of chunks, and their gradients, for the backward pass of the chunk form (chunk_apart.h), on Hopper:
//     S' = e^{c_C} S + sum_j (k_j e^{c_C - c_j}) v_j^T        D = e^{c_C} D' + sum_t (q_t e^{c_t}) do_t^T
// with c_t the log decay since the chunk's start. One walk goes along the recurrence, the other against it, and no exponent is
// greater than 0 where gates decay: no chunk is too strong.
//
// A block has a sequence, a head, a direction, one or two tiles of keys and one or two of values. Each tile of keys has a warp
// group, the consumer, which keeps its rows of the state in registers; another, the producer, brings the rows of the chunks
// ahead. A consumer loads y (k or q) and its gates transposed, as the left operand lies in registers: a thread has two channels
// and, because the producer puts the tokens into the tiles in such an order, 16 tokens that follow each other. So gates are
// summed and applied without shared memory, and once.
#include <glade/ops/linear_attention/chunk_copies.cuh>
#include <glade/ops/linear_attention/chunk_rows.cuh>

namespace glade::cuda::passes {

/// What a kernel is compiled for, and its block's shared memory.
template <class E, int kKeys_, int kValues_>
struct BorderBlock {
  using Element = E;
  using Tile = SwizzledTile<E>;
  static constexpr int kKeys = kKeys_, kValues = kValues_;  ///< tiles
  static constexpr int kThreads = (kKeys + 1) * kGroup;     ///< consumers, then the producer
  static constexpr int kStages = kKeys == 2 && kValues == 2 ? 4 : 3;
  /// Blocks of one tile of keys find room in pairs.
  static constexpr int kBlocks = kKeys == 1 ? 2 : 1, kConsumerRegisters = kKeys == 1 ? 200 : 224, kProducerRegisters = 56;
  static constexpr bool kRests = std::is_same_v<E, __nv_bfloat16>;  ///< of y with factors; half precision has bits enough

  struct Stage {
    Tile y[kKeys], gates[kKeys], w[kValues];
  };
  Stage stages[kStages];
  Tile states[kKeys][kValues];                     ///< rounded, on their way to memory
  alignas(16) float shared_gates[kStages][kTile];  ///< that all channels of a token share, base 2
  std::uint64_t full[kStages], empty[kStages];
};

/// Where a walk is.
struct BorderWalk {
  const Pass& p;  ///< y: rows of keys or queries, w: of values or of the output's gradient
  const Stretch stretch;
  const std::int64_t n;
  const int head, first_key, first_value;

  __device__ int chunks() const { return stretch.end_chunk - stretch.first_chunk; }
  __device__ Step step(int i) const {
    const int chunk = p.backward ? stretch.end_chunk - 1 - i : stretch.first_chunk + i;
    return {chunk, 0, kTile, stretch.chunk_tokens(chunk), true};
  }
  __device__ std::int64_t gate_at(const Step& step, int position) const {
    return stretch.token(step.position() + position) * p.heads + head;
  }
};

template <class B>
__device__ void produce_borders(B& shared, const BorderWalk& walk, int thread) {
  using E = typename B::Element;
  const Pass& p = walk.p;
  auto source = [&](const Rows& rows, int first) { return Source<E>(rows, walk.stretch, walk.head, first, thread); };
  const Source<E> y = source(p.y, walk.first_key), w = source(p.w, walk.first_value),
                  gates = source({p.gk, p.heads, 1, p.inner}, walk.first_key);
  const float gamma = p.g_gamma ? p.g_gamma[walk.n * p.gamma_step + walk.head] : 0.f;
  auto shared_gate = [&](int i) {
    if (i >= walk.chunks() || thread >= kTile) return 0.f;
    const Step step = walk.step(i);
    if (thread >= step.count) return 0.f;
    float g = 0;
    if (p.g && p.wide_gates) g = __ldg(static_cast<const float*>(p.g) + walk.gate_at(step, thread));
    else if (p.g) g = unpack<E>(__ldg(static_cast<const std::uint16_t*>(p.g) + walk.gate_at(step, thread))).x;
    return (g + gamma) * kLog2e;
  };
  float gate = shared_gate(0);
  for (int i = 0; i < walk.chunks(); ++i) {
    const int s = i % B::kStages;
    if (i >= B::kStages) barrier_wait(&shared.empty[s], (i / B::kStages - 1) & 1);
    typename B::Stage& stage = shared.stages[s];
    const Step step = walk.step(i);
    const int first = token_of_row(thread / 8);
    constexpr int kNext = token_of_row(kGroup / 8);
    if (!p.wide_gates) gates.template copy<kGroup>(stage.gates, step, thread, first, kNext);
    y.template copy<kGroup>(stage.y, step, thread, first, kNext);
    w.template copy<kGroup>(stage.w, step, thread, first, kNext);
    if (thread < kTile) shared.shared_gates[s][thread] = gate;
    arrive_with_copies(&shared.full[s]);
    barrier_arrive(&shared.full[s]);
    gate = shared_gate(i + 1);
  }
}

template <class B>
struct BorderConsumer {
  using E = typename B::Element;
  using Tile = typename B::Tile;
  static constexpr int kOwn = 16;  ///< tokens of a thread

  B& shared;
  const BorderWalk& walk;
  const int index, thread;
  const Pass& p = walk.p;
  const int first_key = walk.first_key + index * kTile;
  float state[B::kValues * 32]{};  ///< wgmma's accumulator: rows are keys, columns values
  float decay[2]{};                ///< of this thread's rows since the start, base 2

  __device__ int quad_lane() const { return thread % 4; }
  __device__ int key() const { return first_key + thread / 32 * 16 + thread % 32 / 4; }  ///< and that 8 further on
  __device__ void sync() const { sync_group<kGroup>(1 + index); }

  template <class F>
  __device__ void each_of_state(F&& f) {
#pragma unroll
    for (int i = 0; i < B::kValues * 32; ++i) {
      const int row = key() + i / 2 % 2 * 8, column = walk.first_value + i / 4 * 8 + quad_lane() * 2 + i % 2;
      if (row < p.inner && column < p.outer)
        f(state[i], std::int64_t{row} * p.inner_stride + std::int64_t{column} * p.outer_stride);
    }
  }
  __device__ void scale_state(float first, float second) {
#pragma unroll
    for (int i = 0; i < B::kValues * 32; ++i) state[i] *= i / 2 % 2 ? second : first;
  }

  /// The state to the border where a chunk begins (backward: ends): rounded,
  __device__ void round_state() {
    if (thread == 0) wait_stores();
    sync();
#pragma unroll
    for (int i = 0; i < B::kValues * 4; ++i) {
      const float* x = &state[8 * i];
      const std::uint32_t r[4] = {pack<E>(x[0], x[1]), pack<E>(x[2], x[3]), pack<E>(x[4], x[5]), pack<E>(x[6], x[7])};
      store_straight(shared.states[index][i / 4], i % 4 * 2, r, thread);
    }
  }
  /// and on its way.
  __device__ void store_state(int chunk) {
    fence_for_wgmma();
    sync();
    if (thread != 0) return;
    const int key_tiles = (p.inner + kTile - 1) / kTile, value_tiles = (p.outer + kTile - 1) / kTile;
    const int first_tile = walk.first_value / kTile, bytes = min(B::kValues, value_tiles - first_tile) * int{sizeof(Tile)};
    const std::int64_t row = (walk.stretch.slot(chunk) * p.heads + walk.head) * key_tiles + first_key / kTile;
    store_bytes(static_cast<Tile*>(p.borders) + row * value_tiles + first_tile, shared.states[index], bytes);
    commit_stores();
  }

  /// Log decays, base 2, of this thread's tokens in its two channels.
  template <bool kWide>
  __device__ void load_gates(float (&gates)[2][kOwn], int s, const Step& step) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 by_token = *reinterpret_cast<const float4*>(&shared.shared_gates[s][quad_lane() * kOwn + 4 * k]);
      const float all[4] = {by_token.x, by_token.y, by_token.z, by_token.w};
      if constexpr (kWide) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const int row = key() + i / 4 * 8, token = quad_lane() * kOwn + 4 * k + i % 4;
          const bool inside = token < step.count && row < p.inner;
          gates[i / 4][4 * k + i % 4] =
              inside ? __ldg(static_cast<const float*>(p.gk) + walk.gate_at(step, token) * p.inner + row) : 0.f;
        }
      } else {
        std::uint32_t pairs[4];
        load_transposed(pairs, shared.stages[s].gates[index], k, thread);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<E>(pairs[i]);
          gates[i % 2][4 * k + i / 2 * 2] = pair.x;
          gates[i % 2][4 * k + i / 2 * 2 + 1] = pair.y;
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& gate = gates[i / 4][4 * k + i % 4];
        gate = at_least(fmaf(gate, kLog2e, all[i % 4]), kLeastGate);
      }
    }
  }

  /// Replaces gates by the exponents of y: sums over the later tokens of the chunk, or backward over the earlier ones and the
  /// token itself, without the first of the chunk, which then comes last (half precision could not hold its decay). Returns
  /// the sum of all, and that first one.
  struct Sums {
    float all, last;
  };
  template <bool kBackward>
  __device__ Sums sum(float (&gates)[kOwn]) const {
    Sums sums{};
    if constexpr (kBackward) {
      sums.last = __shfl_sync(~0u, gates[0], thread % 32 / 4 * 4);
      if (quad_lane() == 0) gates[0] = 0;
    }
    float parts[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) parts[k] = (gates[4 * k] + gates[4 * k + 1]) + (gates[4 * k + 2] + gates[4 * k + 3]);
    const float own = (parts[0] + parts[1]) + (parts[2] + parts[3]);
    const float neighbour = __shfl_xor_sync(~0u, own, 1), pair = own + neighbour, others = __shfl_xor_sync(~0u, pair, 2);
    sums.all = pair + others;
    const bool odd = quad_lane() % 2, upper = quad_lane() / 2;
    float sum = (odd == kBackward ? neighbour : 0.f) + (upper == kBackward ? others : 0.f);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float& gate = gates[kBackward ? i : kOwn - 1 - i];
      const float next = sum + gate;
      gate = kBackward ? next : sum;
      sum = next;
    }
    return sums;
  }

  /// What a chunk adds to the state.
  struct Operand {
    std::uint32_t y[4][4], rests[4][4];
    Sums sums[2];
  };
  template <bool kBackward>
  __device__ void prepare(Operand& to, int i) {
    const int s = i % B::kStages;
    const Step step = walk.step(i);
    barrier_wait(&shared.full[s], i / B::kStages & 1);
    fence_for_wgmma();  // the copies are others'
    float exponents[2][kOwn];
    p.wide_gates ? load_gates<true>(exponents, s, step) : load_gates<false>(exponents, s, step);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      to.sums[row] = sum<kBackward>(exponents[row]);
      decay[row] += to.sums[row].all + to.sums[row].last;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      load_transposed(to.y[k], shared.stages[s].y[index], k, thread);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float* exponent = &exponents[j % 2][4 * k + j / 2 * 2];
        const float2 y = unpack<E>(to.y[k][j]);
        const float x[2] = {y.x * exp2_approx(exponent[0]), y.y * exp2_approx(exponent[1])};
        to.y[k][j] = pack<E>(x[0], x[1]);
        if constexpr (B::kRests) to.rests[k][j] = pack_rest<E>(x[0], x[1], to.y[k][j]);
      }
    }
  }
  /// The next is prepared meanwhile.
  template <bool kBackward>
  __device__ void take(int i, Operand& operand) {
    const int chunk = walk.step(i).chunk;
    Operand own = operand;
    if (p.borders) round_state();
    scale_state(exp2_approx(own.sums[0].all), exp2_approx(own.sums[1].all));
    const std::uint32_t w = cuda::operand(shared.stages[i % B::kStages].w[0]);
    wgmma_begin();
    add(own.y, w);
    if constexpr (B::kRests) add(own.rests, w);
    wgmma_commit();
    if (p.borders) store_state(chunk);
    if (i + 1 < walk.chunks()) prepare<kBackward>(operand, i + 1);
    wgmma_wait<0>();
    pin(state);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      pin(own.y[k]);
      if constexpr (B::kRests) pin(own.rests[k]);
    }
    barrier_arrive(&shared.empty[i % B::kStages]);
    if constexpr (kBackward) scale_state(exp2_approx(own.sums[0].last), exp2_approx(own.sums[1].last));
  }
  __device__ void add(const std::uint32_t (&left)[4][4], std::uint32_t w) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (B::kValues == 2) wgmma_wide<E>(state, left[k], wide_descriptor(w, k * kRowStep));
      else wgmma<E, 1>(state, left[k], descriptor(w, k * kRowStep), 1);
    }
  }

  template <bool kBackward>
  __device__ void run() {
    const std::int64_t size = std::int64_t{p.inner} * p.outer;
    if (const float* first = walk.stretch.state_before(p, walk.n)) {
      first += walk.head * size;
      const float by = kBackward ? 1 / p.scale : 1.f;
      each_of_state([&](float& x, std::int64_t at) { x = first[at] * by; });
    }
    Operand operand;
    if (walk.chunks() > 0) prepare<kBackward>(operand, 0);
    for (int i = 0; i < walk.chunks(); ++i) take<kBackward>(i, operand);
    if (float* last = walk.stretch.state_after(p, walk.n)) {
      last += walk.head * size;
      const float by = kBackward ? p.scale : 1.f;
      each_of_state([&](float& x, std::int64_t at) { last[at] = x * by; });
    }
    if (p.decay && walk.first_value == 0 && quad_lane() == 0) {
      float* to = p.decay + (walk.stretch.part_row(p, walk.n) * p.heads + walk.head) * p.inner;
      for (int row = 0; row < 2; ++row)
        if (key() + 8 * row < p.inner) to[key() + 8 * row] = exp2f(decay[row]);
    }
    if (thread == 0) wait_stores();
  }
};

}  // namespace glade::cuda::passes
