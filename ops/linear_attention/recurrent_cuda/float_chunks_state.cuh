#pragma once
// The warp group of float_chunks.cuh that has the state, and computes the results.
#include <glade/ops/linear_attention/recurrent_cuda/float_chunks.cuh>

namespace glade::cuda::recurrent::float_chunks {

/// The template arguments are those of Producer.
template <bool kInnerGates, bool kOuterGates, bool kHeadGates, bool kSumsUp>
class StateGroup {
  static constexpr int kSteps = kTile / 16;                    ///< of 16 columns of a tile
  static constexpr int kInnerParts = kInnerTiles * kTileStep;  ///< from one part of c' or d' to the next

  const Pass<float>& pass;
  Shared& shared;
  const float factor;         ///< of results
  const float update_factor;  ///< of d e^T; the block leaves it out, and has the state divided by it
  const int thread = static_cast<int>(threadIdx.x);
  const int row = fragment_row(thread), column = fragment_column(thread);  ///< row: an outer channel
  /// The state, transposed: rows are outer channels, columns the inner channels of a tile.
  Accumulator<kTile> x[kInnerTiles];
  int chunks = 0;  ///< so far
  int turns = 0;   ///< chunks and items

 public:
  __device__ StateGroup(const Pass<float>& pass, Shared& shared, float factor, float update_factor)
      : pass(pass), shared(shared), factor(factor), update_factor(update_factor) {}

  /// Computes an item. `items`: those before it.
  __device__ void run(const Item& item, int items) {
    load_state(item);
    float inner = 1, outer = 1;  // the decays of the segment, of a channel of this thread
    for (bool done = false; !done; ++turns) {
      const int stage = turns % 2;
      barrier_wait(&shared.rows_full[stage], turns / 2 & 1);
      const Chunk chunk = shared.chunks[stage];
      done = chunk.count == 0;
      if (!done) {
        if (pass.segment_decays != nullptr) {
          const StateDecays& decays = shared.decays[stage];
          if constexpr (kInnerGates) inner *= decays.inner[0][thread] * decays.inner[1][thread];
          if constexpr (kOuterGates) outer *= decays.outer[0][thread % kColumns] * decays.outer[1][thread % kColumns];
          if constexpr (kHeadGates) inner *= shared.head[stage].all;
        }
        if ((kInnerGates || kOuterGates) && chunk.has_large_decay) run_steps(item, chunk, shared.items[items % 2]);
        else run_chunk(item, chunk, shared.items[items % 2]);
        ++chunks;
      }
      barrier_arrive(&shared.d_empty[stage]);
    }
    if (item.high == item.low && item.segment > 0) return;
    const bool last = pass.reverse_scan ? item.low == 0 : item.high >= item.sequence.length;
    if (pass.final.data != nullptr && (last || pass.segment_decays != nullptr)) store_state(item);
    if (pass.segment_decays == nullptr) return;
    float* to = pass.segment_decays +
                ((item.segment * pass.sequences.count + item.n) * pass.heads + item.h) * (pass.inner() + pass.outer());
    if (item.block_column == 0 && thread < pass.inner()) to[thread] = inner;
    if (thread < kColumns && item.block_column + thread < pass.outer()) to[pass.inner() + item.block_column + thread] = outer;
  }

 private:
  // ---- the state ----

  /// Calls f(element, offset, whether the state has it) for the thread's elements.
  template <class F>
  __device__ __forceinline__ void for_each(const Item& item, F&& f) {
#pragma unroll
    for (int t = 0; t < kInnerTiles; ++t)
      x[t].for_each(thread, [&](float& element, int r, int c) {
        const int inner = t * kTile + c, outer = item.block_column + r;
        f(element, inner * pass.inner_stride + outer * pass.outer_stride, inner < pass.inner() && outer < pass.outer());
      });
  }
  __device__ void load_state(const Item& item) {
    for (auto& tile : x) tile.fill(0);
    if (pass.initial.data == nullptr) return;
    const float* from = item.initial_state(pass);
    for_each(item, [&](float& element, std::int64_t at, bool inside) { element = inside ? from[at] : 0.f; });
    if (update_factor == 1) return;
    for (auto& tile : x)
      for (float& element : tile.x) element /= update_factor;
  }
  __device__ void store_state(const Item& item) {
    float* to = pass.final.data + item.n * pass.final.sequence + item.segment * pass.final.segment + item.h * pass.state_size();
    for_each(item, [&](float element, std::int64_t at, bool inside) {
      if (inside) to[at] = element * update_factor;
    });
  }
  /// Multiplies the state by its decays, to the middle of a chunk (0) or from there on (1).
  __device__ __forceinline__ void decay(const StateDecays& decays, int half) {
    if constexpr (kInnerGates)
#pragma unroll
      for (int t = 0; t < kInnerTiles; ++t)
        x[t].scale_columns(thread, [&](int c) { return *reinterpret_cast<const float2*>(&decays.inner[half][t * kTile + c]); });
    if constexpr (kOuterGates)
      for (auto& tile : x) tile.scale_rows(decays.outer[half][row], decays.outer[half][row + 8]);
  }
  /// Four elements of the state in a checkpoint.
  __device__ float4& saved(const Item& item, std::int64_t checkpoint, int quad) const {
    const std::int64_t strips = (pass.outer() + kColumns - 1) / kColumns,
                       block = (checkpoint * pass.heads + item.h) * strips + item.block_column / kColumns;
    return reinterpret_cast<float4*>(pass.states + block * (kInner * kColumns))[quad * kGroup + thread];
  }
  __device__ void save(const Item& item, std::int64_t checkpoint) const {
#pragma unroll
    for (int t = 0; t < kInnerTiles; ++t)
#pragma unroll
      for (int i = 0; i < Accumulator<kTile>::kSize; i += 4)
        saved(item, checkpoint, (t * Accumulator<kTile>::kSize + i) / 4) =
            make_float4(x[t][i], x[t][i + 1], x[t][i + 2], x[t][i + 3]);
  }
  /// Multiplies the state by that of a checkpoint, and leaves the sums over the inner channels in pass.products.
  __device__ void multiply_saved(const Item& item, std::int64_t checkpoint) const {
    float sums[2] = {};
#pragma unroll
    for (int t = 0; t < kInnerTiles; ++t)
#pragma unroll
      for (int i = 0; i < Accumulator<kTile>::kSize; i += 4) {
        const float4 other = saved(item, checkpoint, (t * Accumulator<kTile>::kSize + i) / 4);
        sums[0] += x[t][i] * other.x + x[t][i + 1] * other.y;
        sums[1] += x[t][i + 2] * other.z + x[t][i + 3] * other.w;
      }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = quad_sum(sums[i]);
      const int outer = item.block_column + row + 8 * i;
      if (thread % 4 == 0 && outer < pass.outer())
        pass.products[(checkpoint * pass.heads + item.h) * pass.outer() + outer] = sum * update_factor;
    }
  }

  // ---- products ----

  /// Adds products of kCount steps of 16 columns each to `sums`, which start from 0 if not `add`. fill(parts, i) sets the left
  /// operand of step i, right(i) is the descriptor of the other. Two left operands take turns, as products read them meanwhile.
  template <int kTransposed, int kPartStep, int kCount, class Fill, class Right>
  __device__ __forceinline__ void multiply(Sums& sums, bool add, Fill&& fill, Right&& right) const {
    LeftOperand a[2][kParts];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      LeftOperand(&own)[kParts] = a[i % 2];
      if (i >= 2) wgmma_wait<1>(), pin_parts(own);
      fill(own, i);
      wgmma_begin();
      sums.template multiply<kTransposed, kPartStep>(own, right(i), add || i > 0);
      wgmma_commit();
    }
    sums.wait();
    pin_parts(a[0]), pin_parts(a[1]);
  }
  /// X' times c'.
  __device__ __forceinline__ void multiply_state(Sums& sums) const {
    const std::uint32_t c = operand(shared.c[0][0]);
    multiply<0, kInnerParts, kInnerTiles * kSteps>(
        sums, false, [&](LeftOperand(&parts)[kParts], int i) { split(parts, x[i / kSteps], i % kSteps); },
        [&](int i) { return descriptor(c, i / kSteps * kTileStep + i % kSteps * kColumnStep); });
  }
  /// Adds e'^T times a tile: rows of scores, or columns of d' if kTransposed. `step` is that between 16 positions. `scales`: the
  /// positions' factors, or null.
  template <int kTransposed, int kPartStep>
  __device__ __forceinline__ void multiply_e(Sums& sums, const Tile& tile, int step, bool add, const float* scales) const {
    const std::uint32_t right = operand(tile);
    multiply<kTransposed, kPartStep, kSteps>(
        sums, add,
        [&](LeftOperand(&parts)[kParts], int i) {
          for (int p = 0; p < kParts; ++p) load_transposed(parts[p], shared.e[p], i, thread);
          if (scales != nullptr) scale(parts, i, scales);
        },
        [&](int i) { return descriptor(right, i * step); });
  }

  /// Multiplies the columns of a left operand by their factors.
  __device__ __forceinline__ void scale(LeftOperand (&parts)[kParts], int step, const float* scales) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 by = *reinterpret_cast<const float2*>(scales + left_column(step, j, thread));
      const float2 first = unpack<bf16>(parts[0][j]), second = unpack<bf16>(parts[1][j]), third = unpack<bf16>(parts[2][j]);
      std::uint32_t pair[kParts];
      split(pair, by.x * (first.x + (second.x + third.x)), by.y * (first.y + (second.y + third.y)));
      for (int p = 0; p < kParts; ++p) parts[p][j] = pair[p];
    }
  }

  // ---- results ----

  enum class Wanted { out, past_and_out, any };
  /// Stores the results of a chunk: sums over other positions, and, where these are wanted apart, what each adds itself. kWhole:
  /// all positions exist. kWanted: what is stored, as far as the compiler is to know.
  template <bool kWhole, Wanted kWanted>
  __device__ __forceinline__ void store_results(const Item& item, const Chunk& chunk, const ItemRows& rows,
                                                const Sums& sums) const {
    const std::int64_t step = rows.results_step;
    std::int64_t at = rows.results + row + (chunk.first + column) * step;
    const Place& e = rows.operands[kE];
    const float* own = e.row(chunk.first + column) + item.block_column + row;
    float* out = static_cast<float*>(pass.out);
    const bool inside[2] = {item.block_column + row < pass.outer(), item.block_column + row + 8 < pass.outer()};
#pragma unroll
    for (int m = 0; m < kTile / 8; ++m, at += 8 * step) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const int r = column + 8 * m + s;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool exists = inside[half] && (kWhole || chunk.has_row(r));
          float sum = factor * sums[4 * m + 2 * half + s];
          if constexpr (kOuterGates) sum *= shared.result_decays[r][row + 8 * half];
          const std::int64_t to = at + s * step + 8 * half;
          const auto all = [&] {
            return sum + factor * shared.self[turns % 2][r] * (exists ? __ldg(own + s * e.step + 8 * half) : 0.f);
          };
          if constexpr (kWanted == Wanted::out) {
            if (exists) out[to] = sum;
          } else if constexpr (kWanted == Wanted::past_and_out) {
            const float both = all();
            if (exists) pass.past[to] = sum, out[to] = both;
          } else {
            if (exists && pass.past != nullptr) pass.past[to] = sum;
            if (exists && out != nullptr) out[to] = pass.past != nullptr ? all() : sum;
          }
        }
      }
      if constexpr (kWanted != Wanted::out) own += 8 * e.step;
    }
  }

  // ---- chunks ----

  /// Sets the last position's row of e' to zeros, which all warps have read for the results.
  __device__ void clear_last(const Chunk& chunk) const {
    const int last = chunk.count - 1;
    sync_group<kGroup>(2);
    if (thread < kParts * kTile / 2) *shared.e[thread / (kTile / 2)].pair(last, thread % (kTile / 2)) = 0;
    sync_group<kGroup>(2);
  }
  /// Adds the last position's d e^T to the state.
  __device__ __forceinline__ void add_last(const Item& item, const Chunk& chunk, const ItemRows& rows) {
    const int last = chunk.first + chunk.count - 1;
    const float *d_row = rows.operands[kD].row(last), *e_row = rows.operands[kE].row(last) + item.block_column;
    float own[2];
    for (int half = 0; half < 2; ++half)
      own[half] = item.block_column + row + 8 * half < pass.outer() ? __ldg(e_row + row + 8 * half) : 0.f;
#pragma unroll
    for (int t = 0; t < kInnerTiles; ++t)
#pragma unroll
      for (int i = 0; i < Accumulator<kTile>::kSize; ++i) {
        const int inner = t * kTile + x[t].column(i, thread);
        if (inner < pass.inner()) x[t][i] += __ldg(d_row + inner) * own[x[t].half(i)];
      }
  }
  __device__ __forceinline__ void run_chunk(const Item& item, const Chunk& chunk, const ItemRows& rows) {
    const int stage = turns % 2;
    const unsigned parity = chunks & 1;
    const StateDecays& decays = shared.decays[stage];
    const bool has_checkpoint = chunk.checkpoint >= 0;
    if (has_checkpoint && pass.reverse_scan) multiply_saved(item, chunk.checkpoint);
    decay(decays, 0);
    if constexpr (kSumsUp) {
      Sums sums;
      multiply_state(sums);
      barrier_arrive(&shared.c_empty);
      if constexpr (kHeadGates)
        for (auto* part : {&sums.large, &sums.small})
          part->scale_columns(thread, [&](int c) { return *reinterpret_cast<const float2*>(&shared.head[stage].of_state[c]); });
      barrier_wait(&shared.e_full, parity);
      barrier_wait(&shared.scores_full, parity);
      multiply_e<0, kTileStep>(sums, shared.scores[0], kColumnStep, true, nullptr);
      barrier_arrive(&shared.scores_empty);
      const bool whole = chunk.count == kRows;
      if (whole && pass.past == nullptr) store_results<true, Wanted::out>(item, chunk, rows, sums);
      else if (whole && pass.out != nullptr) store_results<true, Wanted::past_and_out>(item, chunk, rows, sums);
      else store_results<false, Wanted::any>(item, chunk, rows, sums);
    } else {
      barrier_arrive(&shared.c_empty);
      barrier_wait(&shared.e_full, parity);
    }
    const bool saves = has_checkpoint && !pass.reverse_scan;  // without the last position's own update
    if (saves) clear_last(chunk);
#pragma unroll
    for (int t = 0; t < kInnerTiles; ++t) {
      Sums sums;
      multiply_e<1, kInnerParts>(sums, shared.d[stage][0][t], kRowStep, false,
                                 kHeadGates ? shared.head[stage].to_state : nullptr);
      const float all = kHeadGates ? shared.head[stage].all : 1.f;
#pragma unroll
      for (int i = 0; i < Accumulator<kTile>::kSize; ++i) x[t][i] = all * x[t][i] + sums[i];
    }
    barrier_arrive(&shared.e_empty);
    decay(decays, 1);
    if (!saves) return;
    save(item, chunk.checkpoint);
    add_last(item, chunk, rows);
  }

  // ---- single steps ----

  // Meanwhile a thread has eight rows of the state, and four neighboring columns of each tile: it needs fewer operands.
  static constexpr int kStepRows = 8, kStepColumns = 4;
  __device__ int step_row() const { return thread / 16 * kStepRows; }
  __device__ int step_column() const { return thread % 16 * kStepColumns; }

  /// Gives each thread of a warp its elements for single steps, or those for products again.
  template <bool kForSteps>
  __device__ __forceinline__ void rearrange() {
    constexpr int kStride = kTile + 8;  // against bank conflicts
    static_assert(kGroup / 32 * 16 * kStride * sizeof(float) <= sizeof(shared.scores));
    float* rows = reinterpret_cast<float*>(shared.scores) + thread / 32 * 16 * kStride;
    float *of_products = rows + row % 16 * kStride + column, *of_steps = rows + step_row() % 16 * kStride + step_column();
    const auto copy_pairs = [&](float* elements, auto&& f) {
#pragma unroll
      for (int i = 0; i < Accumulator<kTile>::kSize; i += 2)
        f(*reinterpret_cast<float2*>(elements + i),
          *reinterpret_cast<float2*>(of_products + i / 4 * 8 + i / 2 % 2 * 8 * kStride));
    };
    const auto copy_rows = [&](float* elements, auto&& f) {
#pragma unroll
      for (int i = 0; i < kStepRows; ++i)
        f(*reinterpret_cast<float4*>(elements + i * kStepColumns), *reinterpret_cast<float4*>(of_steps + i * kStride));
    };
    const auto store = [](const auto& element, auto& to) { to = element; };
    const auto load = [](auto& element, const auto& from) { element = from; };
#pragma unroll
    for (auto& tile : x) {
      __syncwarp();
      kForSteps ? copy_pairs(tile.x, store) : copy_rows(tile.x, store);
      __syncwarp();
      kForSteps ? copy_rows(tile.x, load) : copy_pairs(tile.x, load);
    }
  }
  template <int kCount>
  __device__ __forceinline__ static void load_floats(float (&to)[kCount], const float* from) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  }
  /// Decays the state at a position and adds its update, d e^T, to it; first the decay, or last in a reverse scan. `sums`: the
  /// thread's sums of c X in between, for each of its rows. `updates`: false leaves the update out.
  template <bool kReverse>
  __device__ __forceinline__ void step(float (&sums)[kStepRows], int stage, int r, bool updates) {
    float e[kStepRows], outer[kStepRows];
    load_floats(e, (updates ? shared.plain_e(r) : shared.zeros()) + step_row());
    if constexpr (kOuterGates) load_floats(outer, shared.result_decays[r] + step_row());
#pragma unroll
    for (int t = 0; t < kInnerTiles; ++t) {
      const int channel = t * kTile + step_column();
      float c[kStepColumns], d[kStepColumns], inner[kStepColumns];
      if constexpr (kSumsUp) load_floats(c, shared.plain_c(r) + channel);
      load_floats(d, shared.plain_d(stage, r) + channel);
      if constexpr (kInnerGates) load_floats(inner, shared.step_decays(stage, r) + channel);
#pragma unroll
      for (int i = 0; i < kStepRows; ++i)
#pragma unroll
        for (int j = 0; j < kStepColumns; ++j) {
          float& element = x[t][i * kStepColumns + j];
          const auto decay = [&] {
            if constexpr (kInnerGates) element *= inner[j];
            if constexpr (kOuterGates) element *= outer[i];
          };
          if constexpr (!kReverse) decay();
          if constexpr (kSumsUp) sums[i] += c[j] * element;
          element += d[j] * e[i];
          if constexpr (kReverse) decay();
        }
    }
  }
  /// Adds up the sums of 16 threads. Each pair of threads gets that of one row, see result_row().
  __device__ __forceinline__ float sum_rows(float (&sums)[kStepRows]) const {
    const float sum = sum_over_lanes<2>(sums, thread);
    return sum + __shfl_xor_sync(~0u, sum, 1);
  }
  __device__ int result_row() const { return thread / 2; }
  /// Four positions from `first` on. `last`: the position whose update is left out, or -1. `to`: where the thread's result of the
  /// chunk's first position is stored, or null.
  template <bool kReverse>
  __device__ __forceinline__ void run_four(const Chunk& chunk, int first, int last, float* to, std::int64_t to_step) {
    const int stage = turns % 2;
    float past[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = kReverse ? 3 - i : i;
      float sums[kStepRows] = {};
      step<kReverse>(sums, stage, first + j, first + j != last);
      if constexpr (kSumsUp) past[j] = sum_rows(sums);
    }
    if constexpr (!kSumsUp) return;
    if (to == nullptr) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int r = first + j;
      const float self = thread % 2 != 0 ? shared.self[stage][r] * shared.plain_e(r)[result_row()] : 0.f;
      if (chunk.has_row(r)) to[r * to_step] = factor * (past[j] + self);
    }
  }
  /// A chunk with large decay.
  __device__ __forceinline__ void run_steps(const Item& item, const Chunk& chunk, const ItemRows& rows) {
    const bool has_checkpoint = chunk.checkpoint >= 0, saves = has_checkpoint && !pass.reverse_scan;
    const unsigned parity = chunks & 1;
    if (has_checkpoint && !saves) multiply_saved(item, chunk.checkpoint);
    sync_group<kGroup>(2);  // every warp has read the last scores
    rearrange<true>();
    barrier_wait(&shared.e_full, parity);
    if constexpr (kSumsUp) barrier_wait(&shared.scores_full, parity);
    // Of two threads with the same results one stores those without the own update, the other one those with it.
    float* to = thread % 2 == 0 ? pass.past : static_cast<float*>(pass.out);
    if (item.block_column + result_row() >= pass.outer()) to = nullptr;
    if (to != nullptr) to += rows.results + result_row() + chunk.first * rows.results_step;
    // Behind the last position are rows that change nothing.
    if (pass.reverse_scan) {
#pragma unroll 1
      for (int first = (chunk.count - 1) / 4 * 4; first >= 0; first -= 4) run_four<true>(chunk, first, -1, to, rows.results_step);
    } else {
#pragma unroll 1
      for (int first = 0; first < chunk.count; first += 4)
        run_four<false>(chunk, first, saves ? chunk.count - 1 : -1, to, rows.results_step);
    }
    barrier_arrive(&shared.c_empty);
    barrier_arrive(&shared.e_empty);
    rearrange<false>();
    if constexpr (kSumsUp) barrier_arrive(&shared.scores_empty);
    if (!saves) return;
    save(item, chunk.checkpoint);
    add_last(item, chunk, rows);
  }
};

}  // namespace glade::cuda::recurrent::float_chunks
