#pragma once
// The kernel that runs a Pass (recurrent_cuda/pass.cuh). A block owns some columns (outer channels) of the state of one sequence
// and head, and processes the positions in tiles. The compute warps hold the state in registers: each thread has kInner inner
// channels of kOuter columns, so that each 128-bit word that it reads from shared memory serves kOuter columns, and the sum over
// the inner channels takes a few shuffles. The producer warps prepare the tiles (recurrent_cuda/producer.cuh). The two sides
// synchronize once per tile.
#include <glade/core/format.h>
#include <glade/ops/linear_attention/recurrent_cuda/producer.cuh>
#include <glade/ops/linear_attention/recurrent_cuda/segments.cuh>

namespace glade::cuda::recurrent {

/// The elements of the state that one thread holds.
template <class C>
struct StateFragment {
  using F = typename C::F;
  F x[C::kInner][C::kOuter];
  int lane, warp, inner_lane, columns[C::kOuter];  ///< columns: numbers of the thread's columns in the block

  // The lanes order their columns differently, so that reduce() always sends and keeps the same registers.
  __device__ explicit StateFragment(int thread) : lane(thread % 32), warp(thread / 32), inner_lane(lane / C::kOuterLanes) {
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s)
      columns[s] = warp * C::kWarpColumns + lane % C::kOuterLanes * C::kOuter + (s ^ (inner_lane % C::kOuter));
  }
  __device__ int inner(int i) const { return (i / 4 * C::kInnerLanes + inner_lane) * 4 + i % 4; }

  /// Calls f(i, s, x) for the elements of the r-th quad of the thread's inner channels.
  template <class Function>
  __device__ __forceinline__ void each_of_quad(int r, Function f) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int s = 0; s < C::kOuter; ++s) f(i, s, x[r * 4 + i][s]);
  }
  template <class Function>
  __device__ __forceinline__ void each(Function f) {
#pragma unroll
    for (int i = 0; i < C::kInner; ++i)
#pragma unroll
      for (int s = 0; s < C::kOuter; ++s) f(i, s, x[i][s]);
  }

  /// Sums the values of each column over kOuter lanes, and returns the sum of column columns[0]. kPartials such sums, in
  /// different lanes, make up the sum of a column.
  __device__ __forceinline__ F reduce(F (&values)[C::kOuter]) const {
#pragma unroll
    for (int half = C::kOuter / 2; half > 0; half /= 2)
#pragma unroll
      for (int s = 0; s < half; ++s) values[s] += __shfl_xor_sync(~0u, values[s + half], half * C::kOuterLanes);
    return values[0];
  }

  /// Loads the r-th quad of the thread's inner channels from a row.
  __device__ __forceinline__ Quad<F> load_quad(const F* row, int r) const {
    return *reinterpret_cast<const Quad<F>*>(row + inner(r * 4));
  }
  __device__ __forceinline__ void load_columns(const F* row, F (&values)[C::kOuter]) const {
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s) values[s] = row[columns[s]];
  }

  /// Writes the partial sums of a slot to shared memory, where the producers store them from.
  __device__ __forceinline__ void finish(Slot<C>& slot, F (&sums)[C::kOuter]) const {
    slot.past[inner_lane / C::kOuter][columns[0]] = reduce(sums);
  }

  /// Multiplies the state by the decays of a slot. `head` is slot.head, which the caller has loaded early.
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

/// Handles a checkpoint, at which the fragment holds the decayed state before the update: a forward scan saves it, a reverse scan
/// multiplies it by the saved one; see Pass::states.
template <class C>
__device__ __forceinline__ void checkpoint(const Pass<typename C::F>& pass, const Place& place, int tile,
                                           StateFragment<C>& fragment) {
  using F = typename C::F;
  constexpr int kQuads = C::kInner * C::kOuter / 4, kBatch = std::min(kQuads, 4);  // loads at once, as registers allow
  const std::int64_t number = place.sequence.first_checkpoint + tile / (pass.sequences.interval / C::kTokens);
  const std::int64_t row = number * pass.heads + place.h;
  const std::int64_t warps = (pass.outer() + place.columns - 1) / place.columns * (place.columns / C::kWarpColumns);
  const std::int64_t warp = row * warps + place.column / C::kWarpColumns + fragment.warp;
  Quad<F>* const quads = reinterpret_cast<Quad<F>*>(pass.states) + warp * (kQuads * 32) + fragment.lane;
  auto element = [&](int i) -> F& { return fragment.x[i / C::kOuter][i % C::kOuter]; };
  if (!pass.reverse_scan) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      Quad<F> quad;
#pragma unroll
      for (int i = 0; i < 4; ++i) quad.x[i] = element(4 * q + i);
      quads[q * 32] = quad;
    }
    return;
  }
  F sums[C::kOuter] = {};
#pragma unroll
  for (int first = 0; first < kQuads; first += kBatch) {
    Quad<F> saved[kBatch];
#pragma unroll
    for (int q = 0; q < kBatch; ++q) saved[q] = quads[(first + q) * 32];
#pragma unroll
    for (int i = 0; i < 4 * kBatch; ++i) sums[(4 * first + i) % C::kOuter] += element(4 * first + i) * saved[i / 4].x[i % 4];
  }
  F product = fragment.reduce(sums);
#pragma unroll
  for (int lanes = C::kOuter; lanes < C::kInnerLanes; lanes *= 2)
    product += __shfl_xor_sync(~0u, product, lanes * C::kOuterLanes);
  const int column = place.column + fragment.columns[0];
  if (fragment.inner_lane < C::kOuter && column < pass.outer()) pass.products[row * pass.outer() + column] = product;
}

/// Processes the positions of a tile. The loop is pipelined: it loads c and d of a slot during the slot before, as soon as
/// registers become free.
template <bool kSums, class C>
__device__ __forceinline__ void compute_tile(const Pass<typename C::F>& pass, const Place& place, StateFragment<C>& fragment,
                                             Tile<C>& tile) {
  using F = typename C::F;
  constexpr int kQuads = C::kInner / 4;
  const bool inner_gate = pass.rows[kInnerGate].data != nullptr, outer_gate = pass.rows[kOuterGate].data != nullptr,
             outer_decay = has_outer_decay(pass);
  Quad<F> c[kQuads], d[kQuads];
  Slot<C>* slot = tile.slots;
#pragma unroll
  for (int r = 0; r < kQuads; ++r) {
    if constexpr (kSums) c[r] = fragment.load_quad(slot->c, r);
    d[r] = fragment.load_quad(slot->d, r);
  }
  const int count = tile.count, checkpointed = tile.checkpoint;
  unsigned rescales = tile.rescales.all();
  const bool rescales_last = rescales >> (C::kTokens - 1) != 0;
  int at = 0;
  while (true) {
    const int rescaling = rescales == 0 ? C::kTokens - 1 : __ffs(static_cast<int>(rescales)) - 1;
    const bool before = (rescales & tile.rescales.before) >> rescaling & 1;
    const int end = min(before ? rescaling : rescaling + 1, count);
    const Slot<C>& decays = tile.slots[rescaling];
    const F head = decays.head;  // early, so that nothing waits for it later
#pragma unroll(C::kUnrolled)
    for (; at < end; ++at) {
      F e[C::kOuter], sums[C::kOuter] = {};
      const auto add_quads = [&](int first, int end) {
#pragma unroll
        for (int r = first; r < (kSums ? end : first); ++r) {
          fragment.each_of_quad(r, [&](int i, int s, F& x) { sums[s] += c[r].x[i] * x; });
          c[r] = fragment.load_quad(slot[1].c, r);
        }
      };
      add_quads(0, kQuads / 2);
      __syncwarp();  // otherwise ptxas would move these loads to the end, and the next position would wait for them
      fragment.load_columns(slot->e, e);
      add_quads(kQuads / 2, kQuads);
#pragma unroll
      for (int r = 0; r < kQuads; ++r) {
        fragment.each_of_quad(r, [&](int i, int s, F& x) { x += d[r].x[i] * e[s]; });
        d[r] = fragment.load_quad(slot[1].d, r);
      }
      if constexpr (kSums) fragment.finish(*slot, sums);  // last, as loads would wait for its store
      ++slot;
    }
    if (at == count) {
      if (!rescales_last) fragment.decay(decays, head, inner_gate, outer_gate, outer_decay);
      return;
    }
    fragment.decay(decays, head, inner_gate, outer_gate, outer_decay);
    if (at == checkpointed) checkpoint(pass, place, tile.index, fragment);
    rescales &= rescales - 1;
  }
}

/// Makes the compute warps wait until `tile`, if there is such a tile, is prepared. The producers may then store the results of
/// the tile before it.
template <class F>
__device__ __forceinline__ void wait_for_tile(const Pass<F>& pass, const Place& place, int tile, int compute_warps) {
  // This barrier has no other purpose than to match the producers' barrier in convert(). The tool racecheck compares only how
  // many barriers two warps have passed, whichever these are; with unequal counts it reports races that sync_block() rules out.
  if (tile < place.tiles && (pass.rows[kInnerGate].data != nullptr || has_outer_decay(pass))) sync_compute_warps(compute_warps);
  sync_block();
}

template <class C>
__device__ void load_state(const Pass<typename C::F>& pass, const Place& place, StateFragment<C>& fragment) {
  using F = typename C::F;
  const F* initial = pass.initial.data;
  if (initial != nullptr)
    initial += place.n * pass.initial.sequence + place.segment * pass.initial.segment + place.h * pass.state_size();
  fragment.each([&](int i, int s, F& x) {
    const int inner = fragment.inner(i), outer = place.column + fragment.columns[s];
    const bool inside = initial != nullptr && inner < pass.inner() && outer < pass.outer();
    x = inside ? initial[inner * pass.inner_stride + outer * pass.outer_stride] : F{0};
  });
}

/// Stores the final state. At the end of a reverse scan it also applies the decay of position 0: every position has applied the
/// decay of the next one only.
template <class C>
__device__ void store_state(const Pass<typename C::F>& pass, const Place& place, StateFragment<C>& fragment) {
  using F = typename C::F;
  const std::int64_t end = std::int64_t{place.first + place.tiles} * C::kTokens;
  const bool last = pass.reverse_scan ? place.first == 0 : end >= place.sequence.length,
             per_segment = pass.segment_decays != nullptr;
  if (pass.final.data == nullptr || !(last || per_segment)) return;
  F* final = pass.final.data + place.n * pass.final.sequence + place.segment * pass.final.segment + place.h * pass.state_size();
  const bool decay = pass.reverse_scan && !per_segment && place.sequence.length > 0;
  const std::int64_t row = decay ? place.sequence.token(0) * pass.heads + place.h : 0;
  auto log_of = [&](const Rows& gate, int channel) {
    return decay && gate.data != nullptr && channel < gate.size ? load_element<F>(gate, row * gate.size + channel) : F{0};
  };
  const F shared = log_of(pass.head_gate, 0) + (decay ? pass.gamma_gate(place.n, place.h) : F{0});
  F a[C::kInner], b[C::kOuter];
#pragma unroll
  for (int i = 0; i < C::kInner; ++i) a[i] = math::exp(shared + log_of(pass.rows[kInnerGate], fragment.inner(i)));
#pragma unroll
  for (int s = 0; s < C::kOuter; ++s) b[s] = math::exp(log_of(pass.rows[kOuterGate], place.column + fragment.columns[s]));
  fragment.each([&](int i, int s, F& x) {
    const int inner = fragment.inner(i), outer = place.column + fragment.columns[s];
    if (inner < pass.inner() && outer < pass.outer())
      final[inner * pass.inner_stride + outer * pass.outer_stride] = x * a[i] * b[s];
  });
}

/// The main loop of the producer warps.
template <class Producer, class C>
__device__ __forceinline__ void produce(const Pass<typename C::F>& pass, const Place place, SharedMemory<C>& memory, int thread) {
  Producer producer(pass, place, memory, thread);
  auto range = [&](int tile) { return TileRange::of<C>(place, pass.reverse_scan, tile); };
  // Loading runs two tiles ahead and storing one behind, hence the extra iterations at both ends. The first one has no barrier.
  for (int tile = -2; tile <= place.tiles; ++tile) {
    if (tile > 0) producer.store(range(tile - 1), memory.tiles[(tile - 1) % 2]);
    if (tile >= -1 && tile + 1 < place.tiles) producer.convert(range(tile + 1), memory.tiles[(tile + 1) % 2]);
    if (tile + 2 < place.tiles) producer.load(range(tile + 2));
    if (tile > -2 && tile < place.tiles) sync_block();
  }
  if (pass.segment_decays == nullptr) return;
  const std::int64_t row = (place.segment * pass.sequences.count + place.n) * pass.heads + place.h;
  producer.store_decays(pass.segment_decays + row * (pass.inner() + pass.outer()));
}

/// I is the largest number of inner channels, T the type of the rows. kSums is set if the pass computes past, out or products; if
/// not, it computes the final state alone.
template <class F, int I, class T, bool kSums>
__global__ void __launch_bounds__((kComputeWarps + kProducerWarps) * 32, 1)
    recurrent_kernel(const __grid_constant__ Pass<F> pass, int blocks_per_head) {
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
    const int block = static_cast<int>(blockIdx.x) % blocks_per_head,
              head_segment = static_cast<int>(blockIdx.x) / blocks_per_head, segment = head_segment % pass.segments,
              pair = head_segment / pass.segments;
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
    bool vector = is_aligned(pass.out) && is_aligned(pass.past), float_gates = has_type<F>(pass.head_gate);
#pragma unroll
    for (const Rows& rows : pass.rows) vector = vector && is_vector(rows);
    for (const Operand gate : {kInnerGate, kOuterGate}) float_gates = float_gates || has_type<F>(pass.rows[gate]);
    if (!vector) produce<Producer<C, T, F, false, kSums>>(pass, place, memory, thread);
    else if (float_gates) produce<Producer<C, T, F, true, kSums>>(pass, place, memory, thread);
    else produce<Producer<C, T, T, true, kSums>>(pass, place, memory, thread);
  } else {
    StateFragment<C> fragment(thread - kProducerWarps * 32);
    load_state(pass, place, fragment);
    wait_for_tile(pass, place, 0, compute_warps);
    for (int tile = 0; tile < place.tiles; ++tile) {
      compute_tile<kSums>(pass, place, fragment, memory.tiles[tile % 2]);
      wait_for_tile(pass, place, tile + 1, compute_warps);
    }
    store_state(pass, place, fragment);
  }
}

// ---- launch --------------------------------------------------------------------------------------------------------

template <class F, int I, class T>
void launch(const Pass<F>& pass, const RecurrentPassPlan& plan, Device device) {
  const bool sums = pass.out != nullptr || pass.past != nullptr;
  auto kernel = sums ? recurrent_kernel<F, I, T, true> : recurrent_kernel<F, I, T, false>;
  // At least what the kernel uses: what runs on Hopper GPUs is not always compiled for them alone.
  const int bytes =
      compute_capability(device) == 90 ? sizeof(SharedMemory<Config<F, I, true>>) : sizeof(SharedMemory<Config<F, I, false>>);
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned blocks = blocks_for(pass.sequences.count * pass.heads * pass.segments * plan.blocks, 1);
  kernel<<<blocks, (plan.warps + kProducerWarps) * 32, bytes, stream(device)>>>(pass, plan.blocks);
  GLADE_CUDA_LAUNCHED();
}

template <class F, int I, class T>
void run_compiled(Pass<F>& pass, const RecurrentPassPlan& plan, Device device) {
  if (plan.columns != plan.warps * Config<F, I, false>::kWarpColumns)  // plan.cpp and Config must agree
    fail<Error>("recurrent: a plan of {} columns for {} warps", plan.columns, plan.warps);
  run_in_segments(pass, plan, device, [&](const Pass<F>& segments) { launch<F, I, T>(segments, plan, device); });
}

template <class F, class T>
void run(Pass<F> pass, const RecurrentPassPlan& plan, Device device) {
  if (pass.sequences.count == 0) return;
  switch (plan.inner) {
    case 32: return run_compiled<F, 32, T>(pass, plan, device);
    case 64: return run_compiled<F, 64, T>(pass, plan, device);
    case 128: return run_compiled<F, 128, T>(pass, plan, device);
    case 256: return run_compiled<F, 256, T>(pass, plan, device);
    default: return run_compiled<F, 512, T>(pass, plan, device);
  }
}

}  // namespace glade::cuda::recurrent
