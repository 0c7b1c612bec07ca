// A pass over sequences of a few tokens, where reading and writing the states takes most of the time: drafts that are verified,
// the last tokens of a prompt, many short sequences. A block has 32 columns of one state in the registers of its threads. It
// prefetches the state into the L2 cache, and meanwhile prepares the rows of some positions in shared memory. The warps then go
// through the positions without waiting for each other, and meet once for the sums over all rows. Where there are many states, a
// block goes on with further columns, for which the inner channels are prepared already.
#include <algorithm>

#include <glade/core/cuda/instructions.cuh>
#include <glade/core/format.h>
#include <glade/ops/linear_attention/recurrent_cuda/pass.cuh>

namespace glade::cuda::recurrent {

namespace {

constexpr int kColumnLanes = 4, kRowLanes = 32 / kColumnLanes;  // lanes of a warp that share a row, and that share columns
constexpr int kColumnQuads = 2, kColumns = 4 * kColumnQuads * kColumnLanes;  // a thread's quads of columns; columns of a block

/// How a block for up to kInner inner channels divides its state: a thread has kQuads quads of rows.
template <int kQuads_, int kWarps_>
struct Layout {
  static constexpr int kQuads = kQuads_, kWarps = kWarps_, kThreads = 32 * kWarps;
  static constexpr int kInner = 4 * kQuads * kRowLanes * kWarps;
  static constexpr int kBlocks = (kQuads > 1 ? 512 : 640) / kThreads;  ///< on a multiprocessor
  static constexpr int kTokens = kInner <= 128 ? 16 : 12;              ///< positions that are prepared at a time

  // A warp prepares one position, or several if these have few channels: kRowThreads lanes each, with kRowQuads quads of
  // channels.
  static constexpr int kRowThreads = kInner / 4 < 32 ? kInner / 4 : 32, kRowQuads = (kInner / 4 + kRowThreads - 1) / kRowThreads,
                       kWarpRows = 32 / kRowThreads;
};

/// What shared memory holds of one position.
template <class L>
struct alignas(16) Slot {
  float c[L::kInner], d[L::kInner], a[L::kInner];  ///< a: the inner decays, times those that all channels share
  float e[2][kColumns], b[2][kColumns];            ///< b: the outer decays; of these columns and of the block's next ones
  float past[L::kWarps][kColumns];                 ///< sums over the rows of each warp
  float self;                                      ///< c . d, which adds the position's own term to the result
};

__device__ __forceinline__ Quad<float>& quad_at(float* row, int channel) {
  return *reinterpret_cast<Quad<float>*>(row + channel);
}

/// A thread of a block. See Producer (recurrent_cuda/producer.cuh) for T, G and kVector, which also asks for aligned states.
template <class L, class T, class G, bool kVector>
struct Thread {
  using Slot = recurrent::Slot<L>;

  const Pass<float>& pass;
  Slot* slots;
  const std::int64_t n;
  const int h;
  int first_column;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = __shfl_sync(~0u, thread / 32, 0);
  const Sequence sequence = Sequence(pass.sequences, n);
  float x[L::kQuads][4][4 * kColumnQuads];  ///< the thread's part of the state: quads of rows, rows of a quad, columns

  /// The first column of quad number q in the block. Half of the lanes have the quads in the other order: see add_rows().
  __device__ int own_column(int q) const { return (q ^ (lane / 16)) * 4 * kColumnLanes + lane % kColumnLanes * 4; }
  /// The first row of quad number r.
  __device__ int row(int r) const { return ((r * L::kWarps + warp) * kRowLanes + lane / kColumnLanes) * 4; }
  /// Which half of a slot's e and b belongs to these columns.
  __device__ static int turn(int first_column) { return first_column / kColumns % 2; }
  __device__ int length() const { return static_cast<int>(sequence.length); }
  /// The position that comes i-th in the order of the scan.
  __device__ int position(int i) const { return pass.reverse_scan ? length() - 1 - i : i; }

  // ---- states ----

  /// Calls f for the thread's elements within the state, with their offset: for quads of them if kVector, else one by one.
  template <class F>
  __device__ __forceinline__ void for_each(F&& f) {
    const int inner_stride = static_cast<int>(pass.inner_stride), outer_stride = static_cast<int>(pass.outer_stride);
#pragma unroll
    for (int r = 0; r < L::kQuads; ++r)
#pragma unroll
      for (int q = 0; q < kColumnQuads; ++q) {
        const int column = first_column + own_column(q), rows = pass.inner() - row(r), columns = pass.outer() - column;
        const int at = row(r) * inner_stride + column * outer_stride, j = 4 * q;
        auto& quad = x[r];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (!kVector) {
#pragma unroll
            for (int k = 0; k < 4; ++k)
              if (i < rows && k < columns) f(at + i * inner_stride + k * outer_stride, quad[i][j + k]);
          } else if (outer_stride == 1) {
            if (i < rows && columns > 0) f(at + i * inner_stride, quad[i][j], quad[i][j + 1], quad[i][j + 2], quad[i][j + 3]);
          } else {
            if (rows > 0 && i < columns) f(at + i * outer_stride, quad[0][j + i], quad[1][j + i], quad[2][j + i], quad[3][j + i]);
          }
        }
      }
  }
  __device__ const float* initial() const { return pass.initial.data + n * pass.initial.sequence + h * pass.state_size(); }
  /// Prefetches columns of the state. No registers wait for them, unlike loads.
  __device__ void prefetch_state(int first_column) const {
    if (pass.initial.data == nullptr) return;
    constexpr int kLine = 128 / sizeof(float);
    const bool contiguous_columns = pass.outer_stride == 1;
    const int lines = contiguous_columns ? 1 : (pass.inner() + kLine - 1) / kLine,  // of a row, or of a column
        count = (contiguous_columns ? pass.inner() : min(kColumns, pass.outer() - first_column)) * lines;
    for (int i = thread; i < count; i += L::kThreads) {
      const int index = i / lines, line = i % lines * kLine;
      const float* at = initial() + (contiguous_columns ? index * pass.inner_stride + first_column
                                                        : (first_column + index) * pass.outer_stride + line);
      prefetch_line(at);
    }
  }
  __device__ void load_state() {
#pragma unroll
    for (auto& quad : x)
#pragma unroll
      for (auto& row : quad)
#pragma unroll
        for (float& element : row) element = 0;
    if (pass.initial.data != nullptr) for_each([from = initial()](int at, auto&... elements) { load(from + at, elements...); });
  }
  __device__ void store_state() {
    float* to = pass.final.data + n * pass.final.sequence + h * pass.state_size();
    for_each([&](int at, auto... elements) { store(to + at, elements...); });
  }
  __device__ static void load(const float* from, float& x) { x = *from; }
  __device__ static void load(const float* from, float& x0, float& x1, float& x2, float& x3) {
    const float4 quad = *reinterpret_cast<const float4*>(from);
    x0 = quad.x, x1 = quad.y, x2 = quad.z, x3 = quad.w;
  }
  __device__ static void store(float* to, float x) { *to = x; }
  __device__ static void store(float* to, float x0, float x1, float x2, float x3) {
    *reinterpret_cast<float4*>(to) = make_float4(x0, x1, x2, x3);
  }

  /// Calls f(four elements, their place in the checkpoint, their first column in x). The checkpoint is the sequence's last
  /// position.
  template <class F>
  __device__ __forceinline__ void for_each_saved(F&& f) {
    const std::int64_t strips = (pass.outer() + kColumns - 1) / kColumns,
                       block = (sequence.first_checkpoint * pass.heads + h) * strips + first_column / kColumns;
    float4* saved = reinterpret_cast<float4*>(pass.states + block * (L::kInner * kColumns)) + thread;
#pragma unroll
    for (auto& quad : x)
#pragma unroll
      for (auto& row : quad)
#pragma unroll
        for (int q = 0; q < kColumnQuads; ++q, saved += L::kThreads) f(&row[4 * q], *saved, 4 * q);
  }
  __device__ void save_checkpoint() {
    for_each_saved([](const float* own, float4& to, int) { to = make_float4(own[0], own[1], own[2], own[3]); });
  }
  /// Multiplies the state by that of the checkpoint, and leaves the sums over the rows in pass.products.
  __device__ void multiply_checkpoint() {
    float sums[4 * kColumnQuads] = {};
    for_each_saved([&](const float* own, const float4& saved, int j) {
      sums[j] += own[0] * saved.x;
      sums[j + 1] += own[1] * saved.y;
      sums[j + 2] += own[2] * saved.z;
      sums[j + 3] += own[3] * saved.w;
    });
    add_rows(slots[0], sums);
    __syncthreads();
    if (thread >= kColumns || first_column + thread >= pass.outer()) return;
    float sum = 0;
    for (const auto& part : slots[0].past) sum += part[thread];
    pass.products[(sequence.first_checkpoint * pass.heads + h) * pass.outer() + first_column + thread] = sum;
  }

  // ---- positions ----

  /// A position that is prepared, and the one whose decay it has: its own or, in a reverse scan, the next one.
  struct Place {
    std::int64_t token, decay_row;
    bool decays;  ///< whether the sequence has the second one
  };
  __device__ Place place(int position, int decaying) const {
    const bool decays = decaying < length();
    return {sequence.token(position), decays ? sequence.token(decaying) * pass.heads + h : 0, decays};
  }
  /// The place of the i-th position in the order of the scan.
  __device__ Place place_of(int i) const { return place(position(i), position(i) + (pass.reverse_scan ? 1 : 0)); }
  /// Prepares the inner channels of `count` positions, from the i-th on.
  __device__ void prepare_channels(int i, int count) const {
    constexpr int kBatch = 2;  // quads of channels whose loads are under way at a time
    constexpr int kStep = L::kWarps * L::kWarpRows;
    const int first = warp * L::kWarpRows + lane / L::kRowThreads, items = (count + kStep - 1) / kStep * L::kRowQuads;
    float self = 0;
#pragma unroll 1
    for (int item = 0; item < items; item += kBatch) {
      Channels channels[kBatch];
      const auto slot_of = [&](int b) { return first + (item + b) / L::kRowQuads * kStep; };
      const auto channel_of = [&](int b) { return (lane % L::kRowThreads + (item + b) % L::kRowQuads * 32) * 4; };
      const auto is_present = [&](int b) { return slot_of(b) < count && channel_of(b) < L::kInner; };
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (is_present(b)) channels[b].load(*this, place_of(i + slot_of(b)), channel_of(b));
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (is_present(b)) self += channels[b].store(*this, slots[slot_of(b)], channel_of(b));
        if ((item + b) % L::kRowQuads != L::kRowQuads - 1) continue;
#pragma unroll
        for (int distance = L::kRowThreads / 2; distance > 0; distance /= 2) self += __shfl_xor_sync(~0u, self, distance);
        if (slot_of(b) < count && lane % L::kRowThreads == 0) slots[slot_of(b)].self = self;
        self = 0;
      }
    }
  }
  /// Prepares 32 columns of them.
  __device__ void prepare_columns(int i, int count, int first_column) const {
    constexpr int kRow = kColumns / 4;
    for (int item = thread; item < count * kRow; item += L::kThreads)
      prepare_columns(slots[item / kRow], place_of(i + item / kRow), item % kRow * 4, first_column);
  }
  /// Four inner channels of a position, as they lie in memory.
  struct Channels {
    Raw<T> c, d;
    Raw<G> a;
    float shared;  ///< the log decay that all channels share

    __device__ __forceinline__ void load(const Thread& t, const Place& place, int channel) {
      const Rows &c_rows = t.pass.rows[kC], &d_rows = t.pass.rows[kD];
      c = load_row<kVector, T>(c_rows, c_rows.row(place.token, t.h), channel);
      d = load_row<kVector, T>(d_rows, d_rows.row(place.token, t.h), channel);
      shared = 0;
      if (!place.decays) return;
      a = load_row<kVector, G, T>(t.pass.rows[kInnerGate], place.decay_row, channel);
      shared = load_element<float>(t.pass.head_gate, place.decay_row) + t.pass.gamma_gate(t.n, t.h);
    }
    /// Converts the channels; returns what they add to c . d.
    __device__ __forceinline__ float store(const Thread& t, Slot& slot, int channel) const {
      const Quad<float> cs = c.template values<float>() * static_cast<float>(t.pass.rows[kC].factor),
                        ds = d.template values<float>();
      quad_at(slot.c, channel) = cs;
      quad_at(slot.d, channel) = ds;
      quad_at(slot.a, channel) = recurrent::decays(a.template values<float>(), shared);
      return cs.x[0] * ds.x[0] + cs.x[1] * ds.x[1] + cs.x[2] * ds.x[2] + cs.x[3] * ds.x[3];
    }
  };
  __device__ void prepare_columns(Slot& slot, const Place& place, int column, int first_column) const {
    const Rows& rows = pass.rows[kE];
    const Raw<T> e = load_row<kVector, T>(rows, rows.row(place.token, h), first_column + column);
    Raw<G> b;
    if (place.decays) b = load_row<kVector, G, T>(pass.rows[kOuterGate], place.decay_row, first_column + column);
    quad_at(slot.e[turn(first_column)], column) =
        e.template values<float>() * static_cast<float>(pass.rows[kD].factor * rows.factor);
    quad_at(slot.b[turn(first_column)], column) = decays(b.template values<float>(), 0.f);
  }

  /// Takes the state through a position, whose decay it has already had unless kDecay, and sums up c times the decayed state.
  template <bool kDecay, bool kOuterGate>
  __device__ __forceinline__ void step(Slot& slot) {
    Quad<float> e[kColumnQuads], b[kColumnQuads];
#pragma unroll
    for (int q = 0; q < kColumnQuads; ++q) {
      e[q] = quad_at(slot.e[turn(first_column)], own_column(q));
      if constexpr (kOuterGate) b[q] = quad_at(slot.b[turn(first_column)], own_column(q));
    }
    float sums[4 * kColumnQuads] = {};
#pragma unroll
    for (int r = 0; r < L::kQuads; ++r) {
      const Quad<float> a = quad_at(slot.a, row(r)), c = quad_at(slot.c, row(r)), d = quad_at(slot.d, row(r));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kColumnQuads; ++j) {
          float& element = x[r][i][j];
          if constexpr (kDecay) element *= a.x[i];
          if constexpr (kDecay && kOuterGate) element *= b[j / 4].x[j % 4];
          sums[j] += c.x[i] * element;
          element += d.x[i] * e[j / 4].x[j % 4];
        }
    }
    add_rows(slot, sums);
  }
  /// Multiplies the state by the decays of a position.
  __device__ void decay(Slot& slot) {
    Quad<float> b[kColumnQuads];
#pragma unroll
    for (int q = 0; q < kColumnQuads; ++q) b[q] = quad_at(slot.b[turn(first_column)], own_column(q));
#pragma unroll
    for (int r = 0; r < L::kQuads; ++r) {
      const Quad<float> a = quad_at(slot.a, row(r));
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4 * kColumnQuads; ++j) x[r][i][j] *= a.x[i] * b[j / 4].x[j % 4];
    }
  }
  __device__ void step(Slot& slot, bool is_checkpoint) {
    if (is_checkpoint) {
      decay(slot);
      save_checkpoint();
      step<false, false>(slot);
    } else if (pass.rows[kOuterGate].data != nullptr) {
      step<true, true>(slot);
    } else {
      step<true, false>(slot);
    }
  }
  /// Sums over the rows of the warp, to slot.past. Of eight columns a lane ends up with one.
  __device__ __forceinline__ void add_rows(Slot& slot, const float (&sums)[8]) const {
    float quad[4], pair[2];
#pragma unroll
    for (int j = 0; j < 4; ++j) quad[j] = sums[j] + __shfl_xor_sync(~0u, sums[4 + j], 16);
    const bool upper = lane / 8 % 2 != 0, odd = lane / 4 % 2 != 0;
#pragma unroll
    for (int j = 0; j < 2; ++j)
      pair[j] = (upper ? quad[2 + j] : quad[j]) + __shfl_xor_sync(~0u, upper ? quad[j] : quad[2 + j], 8);
    slot.past[warp][own_column(0) + 2 * upper + odd] =
        (odd ? pair[1] : pair[0]) + __shfl_xor_sync(~0u, odd ? pair[0] : pair[1], 4);
  }

  /// Stores the results of `count` positions from the i-th on.
  __device__ void finish(int i, int count) const {
    constexpr int kRow = kColumns / 4;
    for (int item = thread; item < count * kRow; item += L::kThreads) {
      Slot& slot = slots[item / kRow];
      const int own = item % kRow * 4, column = first_column + own;
      if (column >= pass.outer()) continue;
      Quad<float> past{};
      for (auto& part : slot.past) past = past + quad_at(part, own);
      const std::int64_t row = (sequence.token(position(i + item / kRow)) * pass.heads + h) * pass.outer();
      if (pass.past != nullptr) store_quad<kVector>(past, pass.past + row, column, pass.outer());
      if (pass.out == nullptr) continue;
      const Quad<float> out = past + quad_at(slot.e[turn(first_column)], own) * slot.self;
      if (pass.out_dtype == dtype_of<T>()) store_quad<kVector>(out, static_cast<T*>(pass.out) + row, column, pass.outer());
      else store_quad<kVector>(out, static_cast<float*>(pass.out) + row, column, pass.outer());
    }
  }

  /// Takes the state from the first position to the last. `prepares_next`: it prepares the block's next columns on the way.
  __device__ void scan(bool prepares_next) {
    const int checkpoint = pass.states != nullptr && !pass.reverse_scan ? length() - 1 : -1;
    int count = min(L::kTokens, length());
    for (int i = 0; i < length(); i += count, count = min(L::kTokens, length() - i)) {
      if (i > 0) {
        __syncthreads();  // all threads have read the last results
        prepare_channels(i, count);
        prepare_columns(i, count, first_column);
        __syncthreads();
      }
      for (int s = 0; s < count; ++s) step(slots[s], i + s == checkpoint);
      __syncthreads();
      if (prepares_next) prepare_columns(i, count, first_column + kColumns);
      finish(i, count);
    }
  }
  /// Stores the state. In a reverse scan it still lacks the decay of position 0.
  __device__ void finish_state() {
    if (pass.final.data == nullptr) return;
    if (pass.reverse_scan && length() > 0) {
      __syncthreads();
      const Place first = place(0, 0);
      if (thread < L::kInner / 4) {
        Channels channels;
        channels.load(*this, first, thread * 4);
        channels.store(*this, slots[0], thread * 4);
      }
      if (thread < kColumns / 4) prepare_columns(slots[0], first, thread * 4, first_column);
      __syncthreads();
      decay(slots[0]);
    }
    store_state();
  }
  /// Whether the inner channels stay prepared for all columns: further positions, or the decay of position 0, take their slots.
  __device__ bool keeps_rows() const { return length() <= L::kTokens && !(pass.reverse_scan && pass.final.data != nullptr); }
  /// Computes the columns of the block, from first_column to `end` - 1.
  __device__ void run(int end) {
    prefetch_state(first_column);
    for (bool is_first = true; first_column < end; first_column += kColumns, is_first = false) {
      if (is_first || !keeps_rows()) {
        if (!is_first) __syncthreads();
        const int count = min(L::kTokens, length());
        prepare_channels(0, count);
        prepare_columns(0, count, first_column);
      }
      load_state();
      __syncthreads();
      const bool has_next = first_column + kColumns < end;
      if (has_next) prefetch_state(first_column + kColumns);
      if (pass.states != nullptr && pass.reverse_scan && length() > 0) {
        multiply_checkpoint();
        __syncthreads();
      }
      scan(has_next && keeps_rows());
      finish_state();
    }
  }
};

template <class L, class T, class G, bool kVector>
__global__ void __launch_bounds__(L::kThreads, L::kBlocks)
    few_tokens_kernel(const __grid_constant__ Pass<float> pass, int blocks, int columns) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const int first_column = static_cast<int>(blockIdx.x % blocks) * columns, pair = static_cast<int>(blockIdx.x / blocks);
  Thread<L, T, G, kVector>{.pass = pass,
                           .slots = reinterpret_cast<Slot<L>*>(shared_memory),
                           .n = pair / pass.heads,
                           .h = pair % pass.heads,
                           .first_column = first_column}
      .run(min(first_column + columns, pass.outer()));
}

template <class L, class T>
void launch(const Pass<float>& pass, const RecurrentPassPlan& plan, Device device) {
  if (plan.columns % kColumns != 0 || plan.inner != L::kInner || pass.inner() > L::kInner)  // plan.cpp and Layout must agree
    fail<Error>("recurrent: a plan of {} columns and {} channels for few tokens", plan.columns, plan.inner);
  const bool vector = std::ranges::all_of(pass.rows, is_vector) && is_aligned(pass.initial.data) && is_aligned(pass.final.data) &&
                      is_aligned(pass.out) && is_aligned(pass.past);
  const bool float_gates = has_type<float>(pass.rows[kInnerGate]) || has_type<float>(pass.rows[kOuterGate]);
  const auto kernel = !vector       ? few_tokens_kernel<L, T, float, false>
                      : float_gates ? few_tokens_kernel<L, T, float, true>
                                    : few_tokens_kernel<L, T, T, true>;
  const int tokens = static_cast<int>(std::clamp<std::int64_t>(pass.sequences.length, 1, L::kTokens)),
            bytes = tokens * static_cast<int>(sizeof(Slot<L>));
  GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const unsigned blocks = blocks_for(pass.sequences.count * pass.heads * plan.blocks, 1);
  kernel<<<blocks, L::kThreads, bytes, stream(device)>>>(pass, plan.blocks, plan.columns);
  GLADE_CUDA_LAUNCHED();
}

}  // namespace

template <class T>
void run_few_tokens(const Pass<float>& pass, const RecurrentPassPlan& plan, Device device) {
  if (pass.sequences.count == 0) return;
  if (pass.states != nullptr && pass.sequences.interval < pass.sequences.length)
    fail<Error>("recurrent: more than one checkpoint in a sequence of few tokens");
  switch (plan.inner) {
    case 32: return launch<Layout<1, 1>, T>(pass, plan, device);
    case 64: return launch<Layout<1, 2>, T>(pass, plan, device);
    case 128: return launch<Layout<1, 4>, T>(pass, plan, device);
    case 256: return launch<Layout<2, 4>, T>(pass, plan, device);
    case 320: return launch<Layout<2, 5>, T>(pass, plan, device);
    default: return launch<Layout<2, 8>, T>(pass, plan, device);
  }
}

template void run_few_tokens<float>(const Pass<float>&, const RecurrentPassPlan&, Device);
template void run_few_tokens<bfloat16>(const Pass<float>&, const RecurrentPassPlan&, Device);
template void run_few_tokens<float16>(const Pass<float>&, const RecurrentPassPlan&, Device);

}  // namespace glade::cuda::recurrent
