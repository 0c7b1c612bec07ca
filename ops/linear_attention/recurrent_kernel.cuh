#pragma once
// The kernel of recurrent_pass.cuh. A block owns some columns (outer channels) of the state of one sequence and head, and
// goes through the positions in tiles. Some of its warps compute: each thread holds a part of the state in registers,
// kInner inner channels of kOuter columns, so that a tile's rows, read from shared memory as 128-bit words, serve
// kOuter columns each, and the sum over the inner channels is a few shuffles. The other warps prepare the tiles
// (recurrent_tile.cuh). A barrier a tile is all that they need of each other.
#include <algorithm>

#include <glade/ops/linear_attention/recurrent_segments.cuh>
#include <glade/ops/linear_attention/recurrent_tile.cuh>

namespace glade::cuda::recurrent {

/// What a thread needs of one position: c A, d / A of its inner channels and e / B of its columns.
template <class C>
struct Operands {
  using F = typename C::F;
  Quad<F> c[C::kInner / 4], d[C::kInner / 4];
  F e[C::kOuter];
};

/// A thread's part of the state.
template <class C>
struct Part {
  using F = typename C::F;
  F x[C::kInner][C::kOuter];
  F sums[C::kOuter] = {};                          ///< of the position before, not yet summed over the lanes
  int lane, warp, inner_lane, columns[C::kOuter];  ///< columns: in the block

  // A thread's order of columns is such that reduce() gets by without exchanging any within a thread.
  __device__ explicit Part(int thread) : lane(thread % 32), warp(thread / 32), inner_lane(lane % C::kInnerLanes) {
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s)
      columns[s] = warp * C::kWarpColumns + lane / C::kInnerLanes * C::kOuter + (s ^ (inner_lane % C::kOuter));
  }
  __device__ int inner(int i) const { return (i / 4 * C::kInnerLanes + inner_lane) * 4 + i % 4; }

  template <class Function>
  __device__ void each(Function f) {
#pragma unroll
    for (int i = 0; i < C::kInner; ++i)
#pragma unroll
      for (int s = 0; s < C::kOuter; ++s) f(i, s, x[i][s]);
  }

  /// Sums over the lanes: that of column columns[0], complete in the lanes that `owns` names and others.
  __device__ F reduce(F (&values)[C::kOuter]) const {
#pragma unroll
    for (int half = C::kOuter / 2; half > 0; half /= 2)
#pragma unroll
      for (int s = 0; s < half; ++s) values[s] += __shfl_xor_sync(~0u, values[s + half], half);
#pragma unroll
    for (int offset = C::kOuter; offset < C::kInnerLanes; offset *= 2) values[0] += __shfl_xor_sync(~0u, values[0], offset);
    return values[0];
  }
  __device__ bool owns() const { return inner_lane < C::kOuter; }

  __device__ void load(const Tile<C>& tile, int slot, Operands<C>& operands) const {
#pragma unroll
    for (int r = 0; r < C::kInner / 4; ++r) {
      operands.c[r] = *reinterpret_cast<const Quad<F>*>(&tile.c[slot][inner(r * 4)]);
      operands.d[r] = *reinterpret_cast<const Quad<F>*>(&tile.d[slot][inner(r * 4)]);
    }
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s) operands.e[s] = tile.e[slot][columns[s]];
  }

  /// Completes the sums of the position before `slot`; before the first there is none, and a row for that.
  __device__ void finish(Tile<C>& tile, int slot) {
    const F past = reduce(sums);
    if (owns()) tile.past[slot][columns[0]] = past;
  }

  __device__ void rescale(const Tile<C>& tile, int slot, bool outer_gate) {
#pragma unroll
    for (int r = 0; r < C::kInner / 4; ++r) {
      const auto a = *reinterpret_cast<const Quad<F>*>(&tile.a[slot][inner(r * 4)]);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int s = 0; s < C::kOuter; ++s) x[r * 4 + i][s] *= a.x[i];
    }
    if (!outer_gate) return;
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s) {
      const F b = tile.b[slot][columns[s]];
#pragma unroll
      for (int i = 0; i < C::kInner; ++i) x[i][s] *= b;
    }
  }
};

/// The positions from one slot to another, none of which but the first rescales. The sums of one are completed during the
/// next, whose operands were loaded during that before.
template <bool kSums, class C>
__device__ void run_slots(Part<C>& part, Tile<C>& tile, int slot, int end) {
  using F = typename C::F;
  Operands<C> now, next;
  part.load(tile, slot, now);
#pragma unroll 2
  for (; slot < end; ++slot) {
    part.load(tile, min(slot + 1, C::kTokens - 1), next);
    if constexpr (kSums) part.finish(tile, slot);
    F sums[C::kOuter] = {};
#pragma unroll
    for (int i = 0; i < C::kInner; ++i)
#pragma unroll
      for (int s = 0; s < C::kOuter; ++s) {
        F& x = part.x[i][s];
        if constexpr (kSums) sums[s] += now.c[i / 4].x[i % 4] * x;
        x += now.d[i / 4].x[i % 4] * now.e[s];
      }
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s) part.sums[s] = sums[s];
    now = next;
  }
}

/// See Pass: the state is the decayed one.
template <class C>
__device__ void checkpoint(const Pass<typename C::F>& pass, const Place& place, std::int64_t position, Part<C>& part) {
  using F = typename C::F;
  const std::int64_t number = place.sequence.first_checkpoint + position / pass.sequences.interval;
  const std::int64_t row = number * pass.heads + place.h;
  const int threads = place.columns / C::kWarpColumns * 32, blocks = (pass.outer() + place.columns - 1) / place.columns;
  F* states = pass.states + (row * blocks + place.column / place.columns) * (C::kInner * C::kOuter) * threads + part.warp * 32 +
              part.lane;
  if (!pass.down) {
    part.each([&](int i, int s, F& x) { states[(i * C::kOuter + s) * threads] = x; });
  } else {
    F sums[C::kOuter] = {};
    part.each([&](int i, int s, F& x) { sums[s] += x * states[(i * C::kOuter + s) * threads]; });
    const F product = part.reduce(sums);
    const int column = place.column + part.columns[0];
    if (part.owns() && column < pass.outer()) pass.products[row * pass.outer() + column] = product;
  }
}

template <bool kSums, class C>
__device__ void compute_tile(const Pass<typename C::F>& pass, const Place& place, const Span& span, Part<C>& part,
                             Tile<C>& tile) {
  const bool outer_gate = pass.rows[kOuterGate].data != nullptr;
  const unsigned rescales = tile.rescales;
  const int at = checkpoint_slot(pass, place, span);
  for (int slot = 0; slot < C::kTokens;) {
    if (rescales >> slot & 1) part.rescale(tile, slot, outer_gate);
    if (slot == at) checkpoint(pass, place, span.position(slot), part);
    const unsigned later = rescales >> slot >> 1;
    const int end = later == 0 ? C::kTokens : slot + __ffs(static_cast<int>(later));
    run_slots<kSums>(part, tile, slot, end);
    slot = end;
  }
  if constexpr (kSums) part.finish(tile, C::kTokens);
  if ((rescales >> (C::kTokens - 1)) == 0) part.rescale(tile, C::kTokens - 1, outer_gate);
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
  const bool last = pass.down ? place.low == 0 : place.high == place.sequence.length, alone = pass.segment_decays != nullptr;
  if (pass.final.data == nullptr || !(last || alone)) return;
  F* final = pass.final.data + place.n * pass.final.sequence + place.segment * pass.final.segment + place.h * pass.state_size();
  const bool decay = pass.down && !alone && place.sequence.length > 0;
  const std::int64_t row = decay ? place.sequence.token(0) * pass.heads + place.h : 0;
  auto log_of = [&](const Rows& gate, int channel) {
    return decay && gate.data != nullptr && channel < gate.size ? load_element<F>(gate, row * gate.size + channel) : F{0};
  };
  const F shared =
      log_of(pass.head_gate, 0) + (decay && pass.gamma != nullptr ? pass.gamma[place.n * pass.heads + place.h] : F{0});
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
template <class C, class Producer, class SpanOf>
__device__ __forceinline__ void produce(Producer producer, const Pass<typename C::F>& pass, const Place& place,
                                        std::int64_t count, const SpanOf& span_of, SharedMemory<C>& memory) {
  // A tile more at either end, where there is nothing to store or to convert; the first comes before all barriers.
  for (std::int64_t tile = -2; tile <= count; ++tile) {
    if (tile > 0) producer.store(span_of(tile - 1), memory.tiles[(tile - 1) % 2]);
    if (tile >= -1 && tile + 1 < count) producer.convert(span_of(tile + 1), memory.tiles[(tile + 1) % 2]);
    if (tile + 2 < count) producer.load(span_of(tile + 2));
    if (tile > -2 && tile < count) __syncthreads();
  }
  if (pass.segment_decays == nullptr) return;
  const std::int64_t row = (place.segment * pass.sequences.count + place.n) * pass.heads + place.h;
  producer.store_decays(pass.segment_decays + row * (pass.inner() + pass.outer()));
}

/// kSums: for past, out or products; without, for the final state alone.
template <class C, bool kSums>
__global__ void __launch_bounds__((kComputeWarps + kProducerWarps) * 32, 1)
    recurrent_kernel(const __grid_constant__ Pass<typename C::F> pass, int blocks_a_head) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& memory = *reinterpret_cast<SharedMemory<C>*>(shared_memory);

  const int compute_warps = static_cast<int>(blockDim.x) / 32 - kProducerWarps,
            warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int columns = compute_warps * C::kWarpColumns, block = static_cast<int>(blockIdx.x) % blocks_a_head;
  const int run = static_cast<int>(blockIdx.x) / blocks_a_head, segment = run % pass.segments, pair = run / pass.segments;
  Place place{
      pair / pass.heads, Sequence(pass.sequences, pair / pass.heads), pair % pass.heads, block * columns, columns, segment};
  place.low = segment * pass.segment;
  place.high = min(place.low + pass.segment, place.sequence.length);
  if (place.low >= place.high && segment > 0) return;

  const std::int64_t count = (place.high - place.low + C::kTokens - 1) / C::kTokens;
  auto span_of = [&](std::int64_t tile) {
    const std::int64_t low = place.low + (pass.down ? count - 1 - tile : tile) * C::kTokens, left = place.high - low;
    return Span{low, left < C::kTokens ? static_cast<int>(left) : C::kTokens, pass.down};
  };
  if (warp >= compute_warps) {
    const int thread = static_cast<int>(threadIdx.x) - compute_warps * 32;
    bool vector = true;
#pragma unroll
    for (const Rows& rows : pass.rows) vector = vector && is_vector(rows);
    if (vector) produce<C>(Producer<C, true>(pass, place, memory, thread), pass, place, count, span_of, memory);
    else produce<C>(Producer<C, false>(pass, place, memory, thread), pass, place, count, span_of, memory);
  } else {
    Part<C> part(static_cast<int>(threadIdx.x));
    load_state(pass, place, part);
    __syncthreads();
    for (std::int64_t tile = 0; tile < count; ++tile) {
      compute_tile<kSums>(pass, place, span_of(tile), part, memory.tiles[tile % 2]);
      __syncthreads();
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

template <class C>
void launch(const Pass<typename C::F>& pass, const Split& split, Device device) {
  auto kernel = pass.out != nullptr || pass.past != nullptr ? recurrent_kernel<C, true> : recurrent_kernel<C, false>;
  constexpr int bytes = sizeof(SharedMemory<C>);
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto blocks = static_cast<unsigned>(pass.sequences.count * pass.heads * pass.segments * split.blocks);
  kernel<<<blocks, (split.warps + kProducerWarps) * 32, bytes, stream(device)>>>(pass, split.blocks);
  GLADE_CUDA_LAUNCHED();
}

template <class F>
void run(Pass<F> pass, Device device) {
  if (pass.sequences.count == 0) return;
  visit_inner(pass.inner(), [&]<int I>(std::integral_constant<int, I>) {
    using C = Config<F, I>;
    const Split split = Split::of<C>(pass.outer(), pass.warps);
    run_in_segments(pass, split.blocks, device, [&](const Pass<F>& part) { launch<C>(part, split, device); });
  });
}

template <class F>
std::int64_t checkpoint_size(const Pass<F>& pass) {
  return visit_inner(pass.inner(), [&]<int I>(std::integral_constant<int, I>) -> std::int64_t {
    const Split split = Split::of<Config<F, I>>(pass.outer(), pass.warps);
    return std::int64_t{split.blocks} * split.columns * I;
  });
}

}  // namespace glade::cuda::recurrent
