#pragma once
// The kernel of recurrent_pass.cuh. A block owns some columns (outer channels) of the state of one sequence and head, and
// goes through the positions in tiles. Some of its warps compute: each thread holds a part of the state in registers,
// kInner inner channels of kOuter columns, so that a tile's rows, read from shared memory as 128-bit words, serve
// kOuter columns each, and the sum over the inner channels is a few shuffles. The other warps prepare the tiles
// (recurrent_tile.cuh). A barrier a tile is all that they need of each other.
#include <glade/ops/linear_attention/recurrent_segments.cuh>
#include <glade/ops/linear_attention/recurrent_tile.cuh>

namespace glade::cuda::recurrent {

/// A thread's part of the state.
template <class C>
struct Part {
  using F = typename C::F;
  F x[C::kInner][C::kOuter];
  int lane, warp, inner_lane, columns[C::kOuter];  ///< columns: in the block

  // A thread's order of columns is such that reduce() gets by without exchanging any within a thread.
  __device__ explicit Part(int thread) : lane(thread % 32), warp(thread / 32), inner_lane(lane / C::kOuterLanes) {
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s)
      columns[s] = warp * C::kWarpColumns + lane % C::kOuterLanes * C::kOuter + (s ^ (inner_lane % C::kOuter));
  }
  __device__ int inner(int i) const { return (i / 4 * C::kInnerLanes + inner_lane) * 4 + i % 4; }

  template <class Function>
  __device__ __forceinline__ void each(Function f) {
#pragma unroll
    for (int i = 0; i < C::kInner; ++i)
#pragma unroll
      for (int s = 0; s < C::kOuter; ++s) f(i, s, x[i][s]);
  }

  /// Sums over kOuter lanes: that of column columns[0]. kPartials lanes hold one of the same column.
  __device__ __forceinline__ F reduce(F (&values)[C::kOuter]) const {
#pragma unroll
    for (int half = C::kOuter / 2; half > 0; half /= 2)
#pragma unroll
      for (int s = 0; s < half; ++s) values[s] += __shfl_xor_sync(~0u, values[s + half], half * C::kOuterLanes);
    return values[0];
  }

  /// The r-th quad of the thread's inner channels of a row.
  __device__ __forceinline__ Quad<F> load_quad(const F* row, int r) const {
    return *reinterpret_cast<const Quad<F>*>(row + inner(r * 4));
  }
  template <bool kSums>
  __device__ __forceinline__ void load_quads(const Slot<C>& slot, int r, Quad<F>& c, Quad<F>& d) const {
    if constexpr (kSums) c = load_quad(slot.c, r);
    d = load_quad(slot.d, r);
  }
  __device__ __forceinline__ void load_columns(const F* row, F (&values)[C::kOuter]) const {
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s) values[s] = row[columns[s]];
  }

  /// Hands over the sums of a slot.
  __device__ __forceinline__ void finish(Slot<C>& slot, F (&sums)[C::kOuter]) const {
    slot.past[inner_lane / C::kOuter][columns[0]] = reduce(sums);
  }

  /// Multiplies the state with the decays of a slot; head: its own, loaded before.
  __device__ __forceinline__ void decay(const Slot<C>& slot, F head, bool inner_gate, bool outer_gate, bool outer_decay) {
    if (inner_gate) {
#pragma unroll
      for (int r = 0; r < C::kInner / 4; ++r) {
        const Quad<F> a = load_quad(slot.a, r);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int s = 0; s < C::kOuter; ++s) x[r * 4 + i][s] *= a.x[i];
      }
    }
    if (!outer_decay) return;
    F b[C::kOuter];
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s) b[s] = outer_gate ? slot.b[columns[s]] * head : head;
    each([&](int, int s, F& value) { value *= b[s]; });
  }
};

/// See Pass: the state is the decayed one.
template <class C>
__device__ __forceinline__ void checkpoint(const Pass<typename C::F>& pass, const Place& place, int tile, Part<C>& part) {
  using F = typename C::F;
  constexpr int kElements = C::kInner * C::kOuter;
  const std::int64_t number = place.sequence.first_checkpoint + tile / (pass.sequences.interval / C::kTokens);
  const std::int64_t row = number * pass.heads + place.h;
  const std::int64_t warps = (pass.outer() + place.columns - 1) / place.columns * (place.columns / C::kWarpColumns);
  const std::int64_t warp = row * warps + place.column / C::kWarpColumns + part.warp;
  Quad<F>* quads = reinterpret_cast<Quad<F>*>(pass.states + warp * kElements * 32) + part.lane;
  F sums[C::kOuter] = {};
#pragma unroll
  for (int q = 0; q < kElements / 4; ++q) {
    Quad<F> quad;
    if (pass.down) quad = quads[q * 32];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = (q * 4 + e) / C::kOuter, s = (q * 4 + e) % C::kOuter;
      if (pass.down) sums[s] += part.x[i][s] * quad.x[e];
      else quad.x[e] = part.x[i][s];
    }
    if (!pass.down) quads[q * 32] = quad;
  }
  if (!pass.down) return;
  F product = part.reduce(sums);
#pragma unroll
  for (int lanes = C::kOuter; lanes < C::kInnerLanes; lanes *= 2)
    product += __shfl_xor_sync(~0u, product, lanes * C::kOuterLanes);
  const int column = place.column + part.columns[0];
  if (part.inner_lane < C::kOuter && column < pass.outer()) pass.products[row * pass.outer() + column] = product;
}

/// The positions of a tile. The operands of a slot are loaded during that before, a part as soon as the registers for it are
/// free; its sums over lanes are completed during the next.
template <bool kSums, class C>
__device__ __forceinline__ void compute_tile(const Pass<typename C::F>& pass, const Place& place, Part<C>& part, Tile<C>& tile) {
  using F = typename C::F;
  constexpr int kQuads = C::kInner / 4;
  const bool inner_gate = pass.rows[kInnerGate].data != nullptr, outer_gate = pass.rows[kOuterGate].data != nullptr,
             outer_decay = has_outer_decay(pass);
  Quad<F> c[kQuads], d[kQuads];
  F e[C::kOuter], last[C::kOuter] = {};
  Slot<C>*slot = tile.slots, *done = slot;
#pragma unroll
  for (int r = 0; r < kQuads; ++r) part.template load_quads<kSums>(*slot, r, c[r], d[r]);
  part.load_columns(slot->e, e);
  const int count = tile.count, checkpointed = tile.checkpoint;
  unsigned rescales = tile.rescales.all();
  const bool rescales_last = rescales >> (C::kTokens - 1) != 0;
  int at = 0;
  while (true) {
    const int rescaling = rescales == 0 ? C::kTokens - 1 : __ffs(static_cast<int>(rescales)) - 1;
    const bool before = (rescales & tile.rescales.before) >> rescaling & 1;
    const int end = min(before ? rescaling : rescaling + 1, count);
    const Slot<C>& decays = tile.slots[rescaling];
    const F head = decays.head;  // now, so that nothing waits for it later
#pragma unroll(C::kUnrolled)
    for (; at < end; ++at) {
      F next_e[C::kOuter], sums[C::kOuter] = {};
      part.load_columns(slot[1].e, next_e);
      if constexpr (kSums) part.finish(*done, last);
      done = slot;
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int s = 0; s < C::kOuter; ++s) {
            F& x = part.x[r * 4 + i][s];
            if constexpr (kSums) sums[s] += c[r].x[i] * x;
            x += d[r].x[i] * e[s];
          }
        part.template load_quads<kSums>(slot[1], r, c[r], d[r]);
      }
#pragma unroll
      for (int s = 0; s < C::kOuter; ++s) last[s] = sums[s], e[s] = next_e[s];
      ++slot;
    }
    if (at == count) {
      if constexpr (kSums) part.finish(*done, last);
      if (!rescales_last) part.decay(decays, head, inner_gate, outer_gate, outer_decay);
      return;
    }
    part.decay(decays, head, inner_gate, outer_gate, outer_decay);
    if (at == checkpointed) checkpoint(pass, place, tile.index, part);
    rescales &= rescales - 1;
  }
}

/// Where the warps that compute wait until `tile`, if there is one, is prepared and the results of the last may be stored.
template <class F>
__device__ __forceinline__ void wait_for_tile(const Pass<F>& pass, const Place& place, int tile, int compute_warps) {
  // The counterpart of the producers' barrier in convert(): as racecheck compares how many barriers two warps have passed, it
  // reports what they access after the same number of them, even of different ones, with a barrier of all in between.
  if (tile < place.tiles && (pass.rows[kInnerGate].data != nullptr || has_outer_decay(pass))) meet_consumers(compute_warps);
  meet();
}

template <class C>
__device__ void load_state(const Pass<typename C::F>& pass, const Place& place, Part<C>& part) {
  using F = typename C::F;
  const F* initial = pass.initial.data;
  if (initial != nullptr)
    initial += place.n * pass.initial.sequence + place.segment * pass.initial.segment + place.h * pass.state_size();
  part.each([&](int i, int s, F& x) {
    const int inner = part.inner(i), outer = place.column + part.columns[s];
    const bool inside = initial != nullptr && inner < pass.inner() && outer < pass.outer();
    x = inside ? initial[inner * pass.inner_stride + outer * pass.outer_stride] : F{0};
  });
}

/// In a pass downwards what is left is the decay of the lowest position, which no position below has applied.
template <class C>
__device__ void store_state(const Pass<typename C::F>& pass, const Place& place, Part<C>& part) {
  using F = typename C::F;
  const std::int64_t end = std::int64_t{place.first + place.tiles} * C::kTokens;
  const bool last = pass.down ? place.first == 0 : end >= place.sequence.length, alone = pass.segment_decays != nullptr;
  if (pass.final.data == nullptr || !(last || alone)) return;
  F* final = pass.final.data + place.n * pass.final.sequence + place.segment * pass.final.segment + place.h * pass.state_size();
  const bool decay = pass.down && !alone && place.sequence.length > 0;
  const std::int64_t row = decay ? place.sequence.token(0) * pass.heads + place.h : 0;
  auto log_of = [&](const Rows& gate, int channel) {
    return decay && gate.data != nullptr && channel < gate.size ? load_element<F>(gate, row * gate.size + channel) : F{0};
  };
  const F shared =
      log_of(pass.head_gate, 0) + (decay && pass.gamma != nullptr ? pass.gamma[place.n * pass.gamma_step + place.h] : F{0});
  F a[C::kInner], b[C::kOuter];
#pragma unroll
  for (int i = 0; i < C::kInner; ++i) a[i] = math::exp(shared + log_of(pass.rows[kInnerGate], part.inner(i)));
#pragma unroll
  for (int s = 0; s < C::kOuter; ++s) b[s] = math::exp(log_of(pass.rows[kOuterGate], place.column + part.columns[s]));
  part.each([&](int i, int s, F& x) {
    const int inner = part.inner(i), outer = place.column + part.columns[s];
    if (inner < pass.inner() && outer < pass.outer())
      final[inner * pass.inner_stride + outer * pass.outer_stride] = x * a[i] * b[s];
  });
}

/// What the warps that prepare the tiles do.
template <class Producer, class C>
__device__ __forceinline__ void produce(const Pass<typename C::F>& pass, const Place place, SharedMemory<C>& memory, int thread) {
  Producer producer(pass, place, memory, thread);
  auto span = [&](int tile) { return Span::of<C>(place, pass.down, tile); };
  // A tile more at either end, where there is nothing to store or to convert; the first comes before all barriers.
  for (int tile = -2; tile <= place.tiles; ++tile) {
    if (tile > 0) producer.store(span(tile - 1), memory.tiles[(tile - 1) % 2]);
    if (tile >= -1 && tile + 1 < place.tiles) producer.convert(span(tile + 1), memory.tiles[(tile + 1) % 2]);
    if (tile + 2 < place.tiles) producer.load(span(tile + 2));
    if (tile > -2 && tile < place.tiles) meet();
  }
  if (pass.segment_decays == nullptr) return;
  const std::int64_t row = (place.segment * pass.sequences.count + place.n) * pass.heads + place.h;
  producer.store_decays(pass.segment_decays + row * (pass.inner() + pass.outer()));
}

/// I: the most inner channels; T: the type of the rows; kSums: for past, out or products; without, for the final state alone.
template <class F, int I, class T, bool kSums>
__global__ void __launch_bounds__((kComputeWarps + kProducerWarps) * 32, 1)
    recurrent_kernel(const __grid_constant__ Pass<F> pass, int blocks_a_head) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using C = Config<F, I, true>;
#else
  using C = Config<F, I, false>;
#endif
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& memory = *reinterpret_cast<SharedMemory<C>*>(shared_memory);

  const int compute_warps = static_cast<int>(blockDim.x) / 32 - kProducerWarps,
            warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int columns = compute_warps * C::kWarpColumns;
  if (threadIdx.x == 0) {
    const int block = static_cast<int>(blockIdx.x) % blocks_a_head, run = static_cast<int>(blockIdx.x) / blocks_a_head,
              segment = run % pass.segments, pair = run / pass.segments;
    const Sequence sequence(pass.sequences, pair / pass.heads);
    const std::int64_t low = segment * pass.segment, high = min(low + pass.segment, sequence.length);
    memory.place = {pair / pass.heads,
                    sequence,
                    pair % pass.heads,
                    block * columns,
                    columns,
                    segment,
                    static_cast<int>(low / C::kTokens),
                    static_cast<int>((high - low + C::kTokens - 1) / C::kTokens)};
  }
  __syncthreads();
  const Place& place = memory.place;
  if (place.tiles <= 0 && place.segment > 0) return;

  const int thread = static_cast<int>(threadIdx.x);
  if (warp < kProducerWarps) {
    bool vector = is_aligned(pass.out) && is_aligned(pass.past), wide_gates = has_type<F>(pass.head_gate);
#pragma unroll
    for (const Rows& rows : pass.rows) vector = vector && is_vector(rows);
    for (const Operand gate : {kInnerGate, kOuterGate}) wide_gates = wide_gates || has_type<F>(pass.rows[gate]);
    if (!vector) produce<Producer<C, T, F, false, kSums>>(pass, place, memory, thread);
    else if (wide_gates) produce<Producer<C, T, F, true, kSums>>(pass, place, memory, thread);
    else produce<Producer<C, T, T, true, kSums>>(pass, place, memory, thread);
  } else {
    Part<C> part(thread - kProducerWarps * 32);
    load_state(pass, place, part);
    wait_for_tile(pass, place, 0, compute_warps);
    for (int tile = 0; tile < place.tiles; ++tile) {
      compute_tile<kSums>(pass, place, part, memory.tiles[tile % 2]);
      wait_for_tile(pass, place, tile + 1, compute_warps);
    }
    store_state(pass, place, part);
  }
}

// ---- launch --------------------------------------------------------------------------------------------------------

/// Calls f(std::integral_constant<int, I>) with the smallest I that holds `inner` channels.
template <class Function>
decltype(auto) visit_inner(int inner, Function f) {
  if (inner <= 32) return f(std::integral_constant<int, 32>{});
  if (inner <= 64) return f(std::integral_constant<int, 64>{});
  if (inner <= 128) return f(std::integral_constant<int, 128>{});
  if (inner <= 256) return f(std::integral_constant<int, 256>{});
  return f(std::integral_constant<int, 512>{});
}

/// Warps of a block that compute, and blocks of a head.
struct Split {
  int warps, blocks, columns;

  template <class C>
  static Split of(int outer, int most_warps) {
    int warps = most_warps == 0 ? kComputeWarps : most_warps;
    while (warps > 2 && warps / 2 * C::kWarpColumns >= outer) warps /= 2;
    const int columns = warps * C::kWarpColumns;
    return {warps, (outer + columns - 1) / columns, columns};
  }
};

template <class F, int I, class T>
void launch(const Pass<F>& pass, const Split& split, Device device) {
  const bool sums = pass.out != nullptr || pass.past != nullptr;
  auto kernel = sums ? recurrent_kernel<F, I, T, true> : recurrent_kernel<F, I, T, false>;
  // At least what the kernel uses: what runs on Hopper GPUs is not always compiled for them alone.
  const int bytes =
      compute_capability(device) == 90 ? sizeof(SharedMemory<Config<F, I, true>>) : sizeof(SharedMemory<Config<F, I, false>>);
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto blocks = static_cast<unsigned>(pass.sequences.count * pass.heads * pass.segments * split.blocks);
  kernel<<<blocks, (split.warps + kProducerWarps) * 32, bytes, stream(device)>>>(pass, split.blocks);
  GLADE_CUDA_LAUNCHED();
}

template <class F, class T>
void run(Pass<F> pass, Device device) {
  if (pass.sequences.count == 0) return;
  visit_inner(pass.inner(), [&]<int I>(std::integral_constant<int, I>) {
    const Split split = Split::of<Config<F, I, false>>(pass.outer(), pass.warps);
    run_in_segments(pass, split.blocks, device, [&](const Pass<F>& part) { launch<F, I, T>(part, split, device); });
  });
}

template <class F>
std::int64_t checkpoint_size(const Pass<F>& pass) {
  return visit_inner(pass.inner(), [&]<int I>(std::integral_constant<int, I>) -> std::int64_t {
    const Split split = Split::of<Config<F, I, false>>(pass.outer(), pass.warps);
    return std::int64_t{split.blocks} * split.columns * I;
  });
}

}  // namespace glade::cuda::recurrent
