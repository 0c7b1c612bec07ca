#pragma once
// The kernel of recurrent_pass.cuh. A block owns some columns (outer channels) of the state of one sequence and head and
// goes through the positions in tiles. Half of its warps compute: each thread holds a part of the state in registers,
// kInner inner channels of kOuter columns, so that a tile's rows, read from shared memory as 128-bit words, serve
// kOuter columns each, and the sum over the inner channels is a few shuffles. The other warps produce: they copy the
// rows of the tile after the next to shared memory, asynchronously, convert those of the next (gates to decays: one
// exponential a row and channel) and write the results of the last.
#include <cuda_pipeline.h>

#include <algorithm>

#include <glade/core/math.h>
#include <glade/ops/linear_attention/recurrent_pass.cuh>

namespace glade::cuda::recurrent {

constexpr int kComputeWarps = 4, kProducerWarps = 4;

/// How a kernel for up to I inner channels splits its work. Gates of absent kinds take no part in it.
template <class F_, int I_, bool kInnerGate_, bool kOuterGate_>
struct Config {
  using F = F_;
  static constexpr int I = I_;
  static constexpr bool kDecayInner = kInnerGate_, kDecayOuter = kOuterGate_;

  static constexpr int kInnerLanes = I <= 64 ? 8 : I <= 256 ? I / 8 : 32;
  static constexpr int kInner = I / kInnerLanes;  ///< inner channels of a thread
  static constexpr int kOuterLanes = 32 / kInnerLanes;
  static constexpr int kOuter = (kInner <= 8 ? 8 : 4) * 4 / static_cast<int>(sizeof(F));  ///< columns of a thread
  static constexpr int kWarpColumns = kOuterLanes * kOuter;
  static constexpr int kColumns = kComputeWarps * kWarpColumns;  ///< of a block, at most

  // Positions of a tile: what fits the shared memory of every GPU since sm_80, with two tiles and a raw one.
  static constexpr int kRows = (2 + kDecayInner) * I + (1 + kDecayOuter) * kColumns;
  static constexpr int kMost = 96 * 1024 / ((3 * kRows + 2 * kColumns) * static_cast<int>(sizeof(F)));
  static constexpr int kTokens = kMost >= 16 ? 16 : kMost >= 8 ? 8 : kMost >= 4 ? 4 : 2;
};

/// Rows of all operands for the positions of a tile, in the order in which they are taken.
template <class C>
struct TileRows {
  using F = typename C::F;
  F inner[2 + C::kDecayInner][C::kTokens][C::I];         ///< c, d, a
  F outer[1 + C::kDecayOuter][C::kTokens][C::kColumns];  ///< e, b

  __device__ F* row(int operand, int slot) { return operand < kE ? inner[operand][slot] : outer[operand - kE][slot]; }
};
template <class C>
struct Tile : TileRows<C> {
  typename C::F past[C::kTokens][C::kColumns];
};
template <class C>
struct SharedMemory {
  Tile<C> tiles[2];
  TileRows<C> raw;                       ///< elements as in global memory, rows at the same places
  typename C::F shared_log[C::kTokens];  ///< of the decay that all channels of a position share
};

/// What a block works on.
struct Place {
  std::int64_t n;
  Sequence sequence;
  int h, column, columns;  // the head; the block's first column and the number of its columns
};

/// Positions of one tile.
struct Span {
  std::int64_t low;
  int count;
  bool down;
  __device__ std::int64_t position(int slot) const { return down ? low + count - 1 - slot : low + slot; }
};

// ---- producers -----------------------------------------------------------------------------------------------------

/// Starts copying the rows of a tile, a warp for each row.
template <class C>
__device__ void copy_tile(const Pass<typename C::F>& pass, const Place& place, const Span& span, SharedMemory<C>& memory,
                          int warp, int lane) {
  using F = typename C::F;
#pragma unroll 1
  for (int operand = 0; operand < kOperands; ++operand) {
    const Rows& rows = pass.rows[operand];
    if (rows.data == nullptr) continue;
    const int size = element_size(rows.dtype), first = operand < kE ? 0 : place.column;
    const int elements = operand < kE ? rows.size : min(place.columns, rows.size - first);
    const bool above = pass.down && (operand == kInnerGate || operand == kOuterGate);
    const auto alignment = static_cast<int>(reinterpret_cast<std::uintptr_t>(rows.data) | rows.size * size | first * size) & 15;
    for (int slot = warp; slot < span.count; slot += kProducerWarps) {
      const std::int64_t position = span.position(slot) + (above ? 1 : 0);
      if (position == place.sequence.length) continue;
      const std::int64_t row = rows.row(place.sequence.token(position), pass.heads, place.h);
      const char* from = static_cast<const char*>(rows.data) + (row * rows.size + first) * size;
      auto* to = reinterpret_cast<char*>(memory.raw.row(operand, slot));
      if (alignment == 0) {
        for (int at = lane * 16; at < elements * size; at += 512) __pipeline_memcpy_async(to + at, from + at, 16);
      } else if (alignment % 4 == 0) {
        for (int at = lane * 4; at < elements * size; at += 128) __pipeline_memcpy_async(to + at, from + at, 4);
      } else {
        for (int at = lane * 2; at < elements * size; at += 64)
          *reinterpret_cast<std::uint16_t*>(to + at) = *reinterpret_cast<const std::uint16_t*>(from + at);
      }
    }
  }
  __pipeline_commit();
  if (const int slot = warp * 32 + lane; slot < span.count) {
    const std::int64_t position = span.position(slot) + (pass.down ? 1 : 0);
    F log = pass.gamma != nullptr ? pass.gamma[place.n * pass.heads + place.h] : F{0};
    if (pass.head_gate.data != nullptr && position < place.sequence.length)
      log += load_element<F>(pass.head_gate, place.sequence.token(position) * pass.heads + place.h);
    memory.shared_log[slot] = log;
  }
}

/// Converts the copied rows, a warp for each row: zeros beyond their ends, logarithms to decays.
template <class C>
__device__ void convert_tile(const Pass<typename C::F>& pass, const Place& place, const Span& span, SharedMemory<C>& memory,
                             Tile<C>& tile, int warp, int lane) {
  using F = typename C::F;
#pragma unroll 1
  for (int operand = 0; operand < kOperands; ++operand) {
    if (operand == kInnerGate && !C::kDecayInner) continue;
    if (operand == kOuterGate && !C::kDecayOuter) continue;
    const Rows& rows = pass.rows[operand];
    const bool is_gate = operand == kInnerGate || operand == kOuterGate;
    const bool with_shared = operand == (C::kDecayInner ? kInnerGate : kOuterGate);
    const int columns = operand < kE ? C::I : place.columns;
    const int elements = rows.data == nullptr ? 0 : operand < kE ? rows.size : rows.size - place.column;
    const F factor = static_cast<F>(rows.factor);
    visit_rows<F>(rows.dtype, [&]<class T>(const T*) {
      for (int slot = warp; slot < span.count; slot += kProducerWarps) {
        const bool above_all = pass.down && span.position(slot) + 1 == place.sequence.length;  // no position, no decay
        const F shared = with_shared ? memory.shared_log[slot] : F{0};
        const T* from = reinterpret_cast<const T*>(memory.raw.row(operand, slot));
        for (int at = lane * 4; at < columns; at += 128) {
          const auto raw = *reinterpret_cast<const Quad<T>*>(from + at);
          Quad<F> quad;
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const F x = at + j < elements ? static_cast<F>(raw.x[j]) : F{0};
            quad.x[j] = !is_gate ? x * factor : above_all ? F{1} : math::exp(shared + x);
          }
          *reinterpret_cast<Quad<F>*>(tile.row(operand, slot) + at) = quad;
        }
      }
    });
  }
}

template <class F, class T>
__device__ void store_quad(const Quad<F>& quad, T* row, int at, int size) {
  if (size % 4 == 0) {
    Quad<T> converted;
#pragma unroll
    for (int j = 0; j < 4; ++j) converted.x[j] = T(quad.x[j]);
    *reinterpret_cast<Quad<T>*>(row + at) = converted;
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (at + j < size) row[at + j] = T(quad.x[j]);
  }
}

/// Writes the results of a tile, a warp for each row.
template <class C>
__device__ void store_tile(const Pass<typename C::F>& pass, const Place& place, const Span& span, const Tile<C>& tile, int warp,
                           int lane) {
  using F = typename C::F;
  if (pass.out == nullptr && pass.past == nullptr) return;
  const int size = pass.outer();
  for (int slot = warp; slot < span.count; slot += kProducerWarps) {
    F self = 0;
    for (int i = lane; i < C::I; i += 32) self += tile.inner[kC][slot][i] * tile.inner[kD][slot][i];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) self += __shfl_xor_sync(~0u, self, offset);
    const std::int64_t row = (place.sequence.token(span.position(slot)) * pass.heads + place.h) * size;
    for (int at = lane * 4; at < place.columns && place.column + at < size; at += 128) {
      auto quad = *reinterpret_cast<const Quad<F>*>(&tile.past[slot][at]);
      if (pass.past != nullptr) store_quad(quad, pass.past + row, place.column + at, size);
      if (pass.out == nullptr) continue;
      const auto e = *reinterpret_cast<const Quad<F>*>(&tile.outer[0][slot][at]);
#pragma unroll
      for (int j = 0; j < 4; ++j) quad.x[j] += self * e.x[j];
      visit_rows<F>(pass.out_dtype,
                    [&]<class T>(const T*) { store_quad(quad, static_cast<T*>(pass.out) + row, place.column + at, size); });
    }
  }
}

// ---- compute warps -------------------------------------------------------------------------------------------------

/// A thread's part of the state. Inner channel (r, x) of a thread is (r * kInnerLanes + inner lane) * 4 + x: the lanes read
/// neighbouring quads. Column s is (outer lane) * kOuter + (s ^ inner lane % kOuter): with every lane's columns in an
/// order of its own, each step of the sum over the lanes sends one half of the columns and keeps the other, without
/// a choice between registers.
template <class C>
struct Part {
  using F = typename C::F;
  F x[C::kInner][C::kOuter];
  int lane, warp, inner_lane, columns[C::kOuter];  // columns: in the block

  __device__ explicit Part(int thread) : lane(thread % 32), warp(thread / 32), inner_lane(lane / C::kOuterLanes) {
#pragma unroll
    for (int s = 0; s < C::kOuter; ++s)
      columns[s] = warp * C::kWarpColumns + lane % C::kOuterLanes * C::kOuter + (s ^ (inner_lane % C::kOuter));
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
  __device__ F reduce(F (&sums)[C::kOuter]) const {
#pragma unroll
    for (int half = C::kOuter / 2; half > 0; half /= 2)
#pragma unroll
      for (int s = 0; s < half; ++s) sums[s] += __shfl_xor_sync(~0u, sums[s + half], half * C::kOuterLanes);
#pragma unroll
    for (int offset = C::kOuter * C::kOuterLanes; offset < 32; offset *= 2) sums[0] += __shfl_xor_sync(~0u, sums[0], offset);
    return sums[0];
  }
  __device__ bool owns() const { return inner_lane < C::kOuter; }
};

/// One position: decay, the sum for `past`, update.
template <bool kDecay, class C>
__device__ __forceinline__ void step(Part<C>& part, Tile<C>& tile, int slot) {
  using F = typename C::F;
  F e[C::kOuter], b[C::kOuter], sums[C::kOuter] = {};
#pragma unroll
  for (int s = 0; s < C::kOuter; ++s) {
    e[s] = tile.outer[0][slot][part.columns[s]];
    if constexpr (kDecay && C::kDecayOuter) b[s] = tile.outer[1][slot][part.columns[s]];
  }
#pragma unroll
  for (int r = 0; r < C::kInner / 4; ++r) {
    const int at = part.inner(r * 4);
    const auto c = *reinterpret_cast<const Quad<F>*>(&tile.inner[kC][slot][at]);
    const auto d = *reinterpret_cast<const Quad<F>*>(&tile.inner[kD][slot][at]);
    Quad<F> a;
    if constexpr (kDecay && C::kDecayInner) a = *reinterpret_cast<const Quad<F>*>(&tile.inner[kInnerGate][slot][at]);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int s = 0; s < C::kOuter; ++s) {
        F& x = part.x[r * 4 + i][s];
        F decayed = x;
        if constexpr (kDecay && C::kDecayInner) decayed *= a.x[i];
        if constexpr (kDecay && C::kDecayOuter) decayed *= b[s];
        sums[s] += c.x[i] * decayed;
        x = decayed + d.x[i] * e[s];
      }
  }
  const F past = part.reduce(sums);
  if (part.owns()) tile.past[slot][part.columns[0]] = past;
}

/// The position of a checkpoint (see Pass): the decay apart from the rest of the step.
template <class C>
__device__ void checkpoint_step(const Pass<typename C::F>& pass, const Place& place, const Span& span, Part<C>& part,
                                Tile<C>& tile, int slot) {
  using F = typename C::F;
  part.each([&](int i, int s, F& x) {
    if constexpr (C::kDecayInner) x *= tile.inner[kInnerGate][slot][part.inner(i)];
    if constexpr (C::kDecayOuter) x *= tile.outer[1][slot][part.columns[s]];
  });
  const std::int64_t number = place.sequence.first_checkpoint + span.position(slot) / pass.sequences.interval;
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
  step<false>(part, tile, slot);
}

template <class C>
__device__ void compute_tile(const Pass<typename C::F>& pass, const Place& place, const Span& span, Part<C>& part,
                             Tile<C>& tile) {
  const std::int64_t high = span.low + span.count;
  const bool checkpoint = pass.states != nullptr && (high % pass.sequences.interval == 0 || high == place.sequence.length);
  const int begin = checkpoint && pass.down ? 1 : 0, end = checkpoint && !pass.down ? span.count - 1 : span.count;
  if (begin > 0) checkpoint_step(pass, place, span, part, tile, 0);
#pragma unroll 2
  for (int slot = begin; slot < end; ++slot) step<true>(part, tile, slot);
  if (end < span.count) checkpoint_step(pass, place, span, part, tile, end);
}

template <class C>
__device__ void load_state(const Pass<typename C::F>& pass, const Place& place, Part<C>& part) {
  using F = typename C::F;
  const F* initial = pass.initial;
  if (initial != nullptr)
    initial += place.n * pass.initial_stride + static_cast<std::int64_t>(place.h) * pass.inner() * pass.outer();
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
  if (pass.final == nullptr) return;
  F* final = pass.final + (place.n * pass.heads + place.h) * pass.inner() * pass.outer();
  const bool decay = pass.down && place.sequence.length > 0;
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

/// A barrier of the producer warps alone.
__device__ inline void producer_barrier() { asm volatile("bar.sync 1, %0;" ::"n"(kProducerWarps * 32) : "memory"); }

template <class C>
__global__ void __launch_bounds__((kComputeWarps + kProducerWarps) * 32)
    recurrent_kernel(const __grid_constant__ Pass<typename C::F> pass, int blocks_a_head) {
  using F = typename C::F;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto& memory = *reinterpret_cast<SharedMemory<C>*>(shared_memory);

  const int compute_warps = static_cast<int>(blockDim.x) / 32 - kProducerWarps,
            warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int pair = static_cast<int>(blockIdx.x) / blocks_a_head, block = static_cast<int>(blockIdx.x) % blocks_a_head;
  const int n = pair / pass.heads, columns = compute_warps * C::kWarpColumns;
  const Place place{n, Sequence(pass.sequences, n), pair % pass.heads, block * columns, columns};

  const std::int64_t count = (place.sequence.length + C::kTokens - 1) / C::kTokens;
  auto span_of = [&](std::int64_t tile) {
    const std::int64_t low = (pass.down ? count - 1 - tile : tile) * C::kTokens, left = place.sequence.length - low;
    return Span{low, left < C::kTokens ? static_cast<int>(left) : C::kTokens, pass.down};
  };
  const bool producer = warp >= compute_warps;
  const int lane = static_cast<int>(threadIdx.x) % 32, producer_warp = warp - compute_warps;
  auto copy = [&](std::int64_t tile) {
    if (tile < count) copy_tile(pass, place, span_of(tile), memory, producer_warp, lane);
  };
  // The tile that copy() brought; nobody uses its place in memory.tiles any more once all producers are here.
  auto convert = [&](std::int64_t tile) {
    __pipeline_wait_prior(0);
    producer_barrier();
    if (tile < count) convert_tile(pass, place, span_of(tile), memory, memory.tiles[tile % 2], producer_warp, lane);
    producer_barrier();
  };
  auto store = [&](std::int64_t tile) { store_tile(pass, place, span_of(tile), memory.tiles[tile % 2], producer_warp, lane); };

  Part<C> part(static_cast<int>(threadIdx.x));
  if (producer) {
    copy(0);
    convert(0);
    copy(1);
  } else {
    load_state(pass, place, part);
  }
  __syncthreads();
  for (std::int64_t tile = 0; tile < count; ++tile) {
    if (producer) {
      if (tile > 0) store(tile - 1);
      convert(tile + 1);
      copy(tile + 2);
    } else {
      compute_tile(pass, place, span_of(tile), part, memory.tiles[tile % 2]);
    }
    __syncthreads();
  }
  if (!producer) store_state(pass, place, part);
  else if (count > 0) store(count - 1);
}

// ---- launch --------------------------------------------------------------------------------------------------------

template <class C>
void launch(const Pass<typename C::F>& pass, Device device, int compute_warps, int blocks_a_head) {
  auto kernel = recurrent_kernel<C>;
  constexpr int bytes = sizeof(SharedMemory<C>);
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const auto blocks = static_cast<unsigned>(pass.sequences.count * pass.heads * blocks_a_head);
  kernel<<<blocks, (compute_warps + kProducerWarps) * 32, bytes, stream(device)>>>(pass, blocks_a_head);
  GLADE_CUDA_LAUNCHED();
}

/// Warps that compute in a block: fewer where the blocks would not fill the GPU.
template <class C>
int compute_warps(const Pass<typename C::F>& pass, Device device) {
  const std::int64_t needed = (pass.outer() + C::kWarpColumns - 1) / C::kWarpColumns;
  int warps = kComputeWarps;
  auto is_too_many = [&] {
    return warps > needed || pass.sequences.count * pass.heads * ((needed + warps - 1) / warps) < multiprocessor_count(device);
  };
  while (warps > 1 && (warps / 2) * C::kWarpColumns % 4 == 0 && is_too_many()) warps /= 2;
  return warps;
}

/// Calls f(std::integral_constant<int, I>) with the smallest I that holds `inner` channels.
template <class Function>
decltype(auto) visit_inner(int inner, Function f) {
  if (inner <= 32) return f(std::integral_constant<int, 32>{});
  if (inner <= 64) return f(std::integral_constant<int, 64>{});
  if (inner <= 128) return f(std::integral_constant<int, 128>{});
  if (inner <= 256) return f(std::integral_constant<int, 256>{});
  return f(std::integral_constant<int, 512>{});
}

template <class F>
void run(const Pass<F>& pass, Device device) {
  if (pass.sequences.count == 0) return;
  visit_inner(pass.inner(), [&]<int I>(std::integral_constant<int, I>) {
    using Any = Config<F, I, true, true>;
    const int warps = compute_warps<Any>(pass, device), columns = warps * Any::kWarpColumns;
    const int blocks_a_head = (pass.outer() + columns - 1) / columns;
    // Gates that all channels share go with either side; the outer one has fewer rows to read.
    if (pass.rows[kInnerGate].data == nullptr) launch<Config<F, I, false, true>>(pass, device, warps, blocks_a_head);
    else if (pass.rows[kOuterGate].data == nullptr && sizeof(F) == 4)
      launch<Config<F, I, true, false>>(pass, device, warps, blocks_a_head);
    else launch<Config<F, I, true, true>>(pass, device, warps, blocks_a_head);
  });
}

template <class F>
std::int64_t checkpoint_size(const Pass<F>& pass, Device device) {
  return visit_inner(pass.inner(), [&]<int I>(std::integral_constant<int, I>) -> std::int64_t {
    using Any = Config<F, I, true, true>;
    const int warps = compute_warps<Any>(pass, device), columns = warps * Any::kWarpColumns;
    return std::int64_t{(pass.outer() + columns - 1) / columns} * columns * I;
  });
}

}  // namespace glade::cuda::recurrent
