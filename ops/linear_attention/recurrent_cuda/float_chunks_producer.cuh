#pragma once
// The producers of float_chunks.cuh: they divide the sequence into chunks, and prepare the rows of each.
#include <iterator>
#include <utility>

#include <glade/ops/linear_attention/recurrent_cuda/float_chunks.cuh>

namespace glade::cuda::recurrent::float_chunks {

using linear_attention::base_2::kLeastGate, linear_attention::base_2::kLog2e;

/// `kInnerGates`: inner channels decay, by gates of their own and of the head; the same of the outer ones. `kHeadGates`: all
/// decay by gates of the head. `kSumsUp`: results are wanted.
template <bool kInnerGates, bool kOuterGates, bool kHeadGates, bool kSumsUp>
class Producer {
  static constexpr int kInnerRows = 16, kOuterRows = 8;  ///< rows of a thread, of two inner and of two outer channels
  static constexpr int kQuarters = kRows / kInnerRows, kEighths = kRows / kOuterRows;

  const Pass<float>& pass;
  Shared& shared;
  const unsigned thread = threadIdx.x - 2 * kGroup;
  const unsigned inner_pair = thread % (kInner / 2), quarter = thread / (kInner / 2);
  const unsigned outer_pair = thread % (kColumns / 2), eighth = thread / (kColumns / 2);
  int chunks = 0;  ///< so far
  int turns = 0;   ///< the same, and items

 public:
  __device__ Producer(const Pass<float>& pass, Shared& shared) : pass(pass), shared(shared) {}

  /// Prepares the chunks of an item. `items`: those before it.
  __device__ void run(const Item& item, int items) {
    ItemRows& rows = shared.items[items % 2];
    Place(&places)[kOperands] = rows.operands;
    if (thread < kOperands) places[thread] = item.place(pass.rows[thread]);
    if (thread == kOperands) rows.results = item.results(pass), rows.results_step = item.results_step(pass);
    meet();
    prefetch_state(item);
    const bool reverse = pass.reverse_scan;
    int at = reverse ? item.high : item.low;
    while (at != (reverse ? item.low : item.high)) {
      const Chunk chunk = next_chunk(item, at);
      at = reverse ? chunk.first : chunk.first + chunk.count;
      prefetch(item, places, next_chunk(item, at));
      const bool done = chunk.count == kRows ? prepare<true>(item, places, chunk) : prepare<false>(item, places, chunk);
      if constexpr (kInnerGates || kOuterGates)
        if (!done) prepare_steps(item, places, chunk);
      ++chunks, ++turns;
    }
    barrier_wait(&shared.d_empty[turns % 2], stage_parity());
    if (thread == 0) shared.chunks[turns % 2].count = 0;
    barrier_arrive(&shared.rows_full[turns % 2]);
    ++turns;
  }

 private:
  __device__ unsigned stage_parity() const { return (turns / 2 & 1) ^ 1; }
  __device__ static void meet() { sync_group<kProducers>(1); }

  // ---- chunks ----

  /// The next chunk of a scan that is at position `at`.
  __device__ Chunk next_chunk(const Item& item, int at) const {
    Chunk chunk{0, 0, false, -1};
    const bool has_checkpoints = pass.states != nullptr;
    const int interval = static_cast<int>(pass.sequences.interval);
    if (pass.reverse_scan) {
      const int begin = max(item.low, has_checkpoints ? (at - 1) / interval * interval : 0);
      chunk.first = max(begin, at - kRows);
      chunk.count = at - chunk.first;
    } else {
      const int end = min(item.high, has_checkpoints ? (at / interval + 1) * interval : item.high);
      chunk.first = at;
      chunk.count = min(end - at, kRows);
    }
    if (has_checkpoints) {
      const int end = chunk.first + chunk.count, index = (end - 1) / interval;
      if (end >= item.sequence.length || end == (index + 1) * interval) chunk.checkpoint = item.sequence.first_checkpoint + index;
    }
    return chunk;
  }
  /// Brings the rows of a chunk to the L2 cache.
  __device__ void prefetch(const Item& item, const Place (&places)[kOperands], const Chunk& chunk) const {
    const int row = static_cast<int>(thread) / 4;
    if (row >= chunk.count) return;
    const auto line = [&](int operand, int channel) {
      const Place& place = places[operand];
      if (place.first == nullptr || channel >= pass.rows[operand].size) return;
      prefetch_line(place.row(chunk.first + row) + channel);
    };
    for (const int operand : {kC, kD, kInnerGate}) line(operand, thread % 4 * 32);
    if (thread % 4 < kColumns / 32)
      for (const int operand : {kE, kOuterGate}) line(operand, item.block_column + thread % 4 * 32);
  }
  /// Brings the state that the item starts from to the L2 cache.
  __device__ void prefetch_state(const Item& item) const {
    constexpr int kLine = 32;  // elements
    if (pass.initial.data == nullptr) return;
    const bool outer_lines = pass.outer_stride == 1;
    const int lines = outer_lines ? kColumns / kLine : kInner / kLine, line = static_cast<int>(thread) % lines * kLine,
              other = static_cast<int>(thread) / lines;
    const int inner = outer_lines ? other : line, outer = item.block_column + (outer_lines ? line : other);
    if (inner < pass.inner() && outer < pass.outer())
      prefetch_line(item.initial_state(pass) + inner * pass.inner_stride + outer * pass.outer_stride);
  }
  /// Prepares a chunk, unless it has large decay: then returns false. kWhole: it has all positions.
  template <bool kWhole>
  __device__ __forceinline__ bool prepare(const Item& item, const Place (&places)[kOperands], const Chunk& chunk) {
    const int stage = turns % 2;
    auto& inner_totals = shared.inner_totals[stage];
    auto& outer_totals = shared.outer_totals[stage];
    float2 inner[kInnerRows], outer[kOuterRows], head;
    if constexpr (kHeadGates) head = head_logs(item, chunk);
    if constexpr (kInnerGates) {
      load_logs<kWhole>(inner, item, places, kInnerGate, chunk, quarter * kInnerRows, 2 * inner_pair, true);
      store_totals(inner, inner_totals, quarter, inner_pair);
    }
    if constexpr (kOuterGates) {
      load_logs<kWhole>(outer, item, places, kOuterGate, chunk, eighth * kOuterRows, item.block_column + 2 * outer_pair,
                        !kInnerGates);
      store_totals(outer, outer_totals, eighth, outer_pair);
    }
    if constexpr (kInnerGates || kOuterGates) {
      meet();
      float largest = 0;
      if constexpr (kInnerGates) largest = find_exponents<kWhole>(inner, inner_totals, quarter, inner_pair, chunk);
      if constexpr (kOuterGates)
        largest = at_least(largest, find_exponents<kWhole>(outer, outer_totals, eighth, outer_pair, chunk));
      if (sync_group_or<kProducers>(1, !(largest <= kSafeRange))) return false;
    }
    Batches batches;
    load_batch<kWhole, 0>(batches, item, places, chunk);
    load_batch<kWhole, 1>(batches, item, places, chunk);
    const float sign = pass.reverse_scan ? -1.f : 1.f;
    if constexpr (kInnerGates) to_factors(inner, sign);
    if constexpr (kOuterGates) to_factors(outer, sign);
    barrier_wait(&shared.d_empty[stage], stage_parity());
    publish(chunk, stage);
    if constexpr (kHeadGates) store_head_decays(shared.head[stage], head);
    [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
      ((load_batch<kWhole, kIndex + kAhead>(batches, item, places, chunk), prepare_batch<kIndex>(batches, inner, outer)), ...);
    }(std::make_integer_sequence<int, kBatches>());
    return true;
  }
  /// Says what the chunk is, and how it decays the state.
  __device__ __forceinline__ void publish(const Chunk& chunk, int stage) const {
    if (thread == 0) shared.chunks[stage] = chunk;
    if constexpr (kInnerGates)
      if (thread < kInner) store_state_decays<kQuarters>(shared.decays[stage].inner, shared.inner_totals[stage], thread);
    if constexpr (kOuterGates)
      if (thread >= kInner && thread < kInner + kColumns)
        store_state_decays<kEighths>(shared.decays[stage].outer, shared.outer_totals[stage], thread - kInner);
  }
  /// Prepares a chunk with large decay, for single steps.
  __device__ __forceinline__ void prepare_steps(const Item& item, const Place (&places)[kOperands], Chunk chunk) const {
    const int stage = turns % 2, inner_row = static_cast<int>(quarter * kInnerRows),
              inner_channel = static_cast<int>(2 * inner_pair), outer_row = static_cast<int>(eighth * kOuterRows),
              outer_channel = static_cast<int>(2 * outer_pair);
    const unsigned parity = (chunks & 1) ^ 1;
    const auto store = [](const auto& x, int channel, auto&& row) {
#pragma unroll
      for (int i = 0; i < static_cast<int>(std::size(x)); ++i) *reinterpret_cast<float2*>(row(i) + channel) = x[i];
    };
    chunk.has_large_decay = true;
    float2 x[kInnerRows], decays[kInnerRows], e[kOuterRows], e_decays[kOuterRows];
    load_rows(x, places, kD, chunk, inner_row, inner_channel);
    barrier_wait(&shared.d_empty[stage], stage_parity());
    publish(chunk, stage);
    store(x, inner_channel, [&](int i) { return shared.plain_d(stage, inner_row + i); });
    if constexpr (kInnerGates) {
      load_logs<false>(decays, item, places, kInnerGate, chunk, inner_row, inner_channel, true);
      to_factors(decays, 1);
    }
    if constexpr (kSumsUp) load_rows(x, places, kC, chunk, inner_row, inner_channel);
    barrier_wait(&shared.c_empty, parity);
    if constexpr (kSumsUp) store(x, inner_channel, [&](int i) { return shared.plain_c(inner_row + i); });
    if constexpr (kInnerGates) store(decays, inner_channel, [&](int i) { return shared.step_decays(stage, inner_row + i); });
    barrier_arrive(&shared.rows_full[stage]);
    load_rows(e, places, kE, chunk, outer_row, item.block_column + outer_channel);
    if constexpr (kOuterGates) {
      load_logs<false>(e_decays, item, places, kOuterGate, chunk, outer_row, item.block_column + outer_channel, !kInnerGates);
      to_factors(e_decays, 1);
    }
    barrier_wait(&shared.e_empty, parity);
    store(e, outer_channel, [&](int i) { return shared.plain_e(outer_row + i); });
    if (thread < kColumns) shared.zeros()[thread] = 0;
    if constexpr (kOuterGates) store(e_decays, outer_channel, [&](int i) { return shared.result_decays[outer_row + i]; });
    barrier_arrive(&shared.e_full);
  }

  // ---- decays ----

  /// Two channels of the rows of an operand, from a row of a chunk on.
  struct Source {
    const float* at;
    std::int64_t step;
    bool exists;

    /// Loads the next row; zeros where it is not `inside`. kWhole: it is.
    template <bool kWhole>
    __device__ __forceinline__ float2 load(bool inside) {
      float2 x = make_float2(0, 0);
      if ((kWhole || inside) && exists) x = __ldg(reinterpret_cast<const float2*>(at));
      forget(at += step);  // otherwise the addresses of all rows would occupy registers at once
      return x;
    }
  };
  __device__ Source source(const Place (&places)[kOperands], int operand, const Chunk& chunk, int row, int channel) const {
    const Place& place = places[operand];
    return {place.row(chunk.first + row) + channel, place.step, channel < pass.rows[operand].size};
  }
  /// Loads rows of two channels of an operand; zeros where the chunk has none.
  template <int kCount>
  __device__ __forceinline__ void load_rows(float2 (&x)[kCount], const Place (&places)[kOperands], int operand,
                                            const Chunk& chunk, int row, int channel) const {
    Source from = source(places, operand, chunk, row, channel);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = from.template load<false>(chunk.has_row(row + i));
  }
  /// The log decay, base 2, that all channels of the head share at a position.
  __device__ float head_log(const Item& item, int position) const {
    float gate = pass.gamma_gate(item.n, item.h);
    if (pass.head_gate.data != nullptr) {
      const std::int64_t at = pass.head_gate.row(item.sequence.token(position), item.h);
      gate += __ldg(static_cast<const float*>(pass.head_gate.data) + at);
    }
    return gate * kLog2e;
  }
  /// The same of two positions of a chunk, for each thread of the first warp.
  __device__ __forceinline__ float2 head_logs(const Item& item, const Chunk& chunk) const {
    const int first = static_cast<int>(2 * thread);
    const auto log = [&](int r) {
      return thread < 32 && chunk.has_row(r) ? at_least(head_log(item, chunk.first + r), kLeastGate) : 0.f;
    };
    return make_float2(log(first), log(first + 1));
  }
  /// Decays between positions are differences of sums, so these have twice the digits.
  __device__ __forceinline__ void store_head_decays(HeadDecays& to, float2 logs) const {
    if (thread >= 32) return;
    double sum = static_cast<double>(logs.x) + logs.y;
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const double before = __shfl_up_sync(~0u, sum, distance);
      if (thread >= distance) sum += before;
    }
    const double all = __shfl_sync(~0u, sum, 31);
    const auto power = [](double x) { return power_of_2<float>(static_cast<float>(x)); };
    const auto store = [&](unsigned r, double a) {
      const float high = static_cast<float>(a);
      to.high[r] = high, to.low[r] = static_cast<float>(a - high);
      const bool reverse = pass.reverse_scan;
      to.of_state[r] = power(reverse ? all - a : a), to.to_state[r] = power(reverse ? a : all - a);
    };
    store(2 * thread, sum - logs.y), store(2 * thread + 1, sum);
    if (thread == 0) to.all = power(all);
  }
  /// Loads the log decays of `kCount` rows of two channels; the head's are part of them where `with_head`.
  template <bool kWhole, int kCount>
  __device__ __forceinline__ void load_logs(float2 (&logs)[kCount], const Item& item, const Place (&places)[kOperands],
                                            int operand, const Chunk& chunk, int row, int channel, bool with_head) const {
    if (pass.rows[operand].data != nullptr) {
      Source from = source(places, operand, chunk, row, channel);
#pragma unroll
      for (int i = 0; i < kCount; ++i) logs[i] = from.load<kWhole>(chunk.has_row(row + i));
    } else {
#pragma unroll
      for (float2& log : logs) log = make_float2(0, 0);
    }
    float head = 0;  // of row `row` + lane
    if (with_head && (pass.head_gate.data != nullptr || pass.gamma != nullptr)) {
      const int own = row + static_cast<int>(thread) % 32;
      if (thread % 32 < kCount && (kWhole || chunk.has_row(own))) head = head_log(item, chunk.first + own);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float together = with_head ? __shfl_sync(~0u, head, i) : 0.f;
      logs[i] =
          make_float2(at_least(logs[i].x * kLog2e + together, kLeastGate), at_least(logs[i].y * kLog2e + together, kLeastGate));
    }
  }
  /// The sums of a thread's rows of log decays, [part of the rows][channel].
  template <int kCount, int kChannels>
  __device__ __forceinline__ static void store_totals(const float2 (&logs)[kCount], float (*totals)[kChannels], int part,
                                                      int pair) {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum.x += logs[i].x, sum.y += logs[i].y;
    *reinterpret_cast<float2*>(&totals[part][2 * pair]) = sum;
  }
  /// Turns log decays into the exponents of rows from the middle. Returns the largest magnitude.
  template <bool kWhole, int kCount, int kChannels>
  __device__ __forceinline__ static float find_exponents(float2 (&logs)[kCount], const float (*totals)[kChannels], int part,
                                                         int pair, const Chunk& chunk) {
    constexpr int kMiddle = kRows / kCount / 2;
    float2 sum = make_float2(0, 0);
    float largest = 0;
    const auto add_part = [&](int p, float sign) {
      const float2 total = *reinterpret_cast<const float2*>(&totals[p][2 * pair]);
      sum.x += sign * total.x, sum.y += sign * total.y;
    };
    const auto set = [&](float2& log, int i) {
      log = kWhole || chunk.has_row(part * kCount + i) ? sum : make_float2(0, 0);
      largest = at_least(largest, at_least(fabsf(log.x), fabsf(log.y)));
    };
    if (part < kMiddle) {
      for (int p = kMiddle - 1; p > part; --p) add_part(p, -1);
#pragma unroll
      for (int i = kCount - 1; i >= 0; --i) {
        const float2 own = logs[i];
        set(logs[i], i);
        sum.x -= own.x, sum.y -= own.y;
      }
    } else {
      for (int p = kMiddle; p < part; ++p) add_part(p, 1);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sum.x += logs[i].x, sum.y += logs[i].y;
        set(logs[i], i);
      }
    }
    return largest;
  }
  template <int kCount>
  __device__ __forceinline__ static void to_factors(float2 (&exponents)[kCount], float sign) {
#pragma unroll
    for (float2& x : exponents) x = make_float2(power_of_2<float>(sign * x.x), power_of_2<float>(sign * x.y));
  }
  /// The decays of the state, of a channel for each thread.
  template <int kCount, int kChannels>
  __device__ __forceinline__ void store_state_decays(float (&to)[2][kChannels], const float (*totals)[kChannels],
                                                     int channel) const {
    float sums[2] = {};
    for (int p = 0; p < kCount; ++p) sums[p / (kCount / 2)] += totals[p][channel];
    const bool reverse = pass.reverse_scan;
    to[0][channel] = power_of_2<float>(reverse ? sums[1] : sums[0]);
    to[1][channel] = power_of_2<float>(reverse ? sums[0] : sums[1]);
  }

  // ---- rows ----

  // Rows are prepared in batches, which are loaded two ahead: those of d, of c and of e.
  static constexpr int kBatch = 4, kAhead = 2, kInnerBatches = kInnerRows / kBatch, kFirstOfE = (kSumsUp ? 2 : 1) * kInnerBatches,
                       kBatches = kFirstOfE + kOuterRows / kBatch;
  static constexpr int operand_of(int batch) { return batch < kInnerBatches ? kD : batch < kFirstOfE ? kC : kE; }
  static constexpr int first_row_of(int batch) {  ///< of the thread's
    return (batch - (operand_of(batch) == kD ? 0 : operand_of(batch) == kC ? kInnerBatches : kFirstOfE)) * kBatch;
  }
  struct Batches {
    float2 x[kAhead + 1][kBatch];
    Source from;
  };
  template <bool kWhole, int kIndex>
  __device__ __forceinline__ void load_batch(Batches& batches, const Item& item, const Place (&places)[kOperands],
                                             const Chunk& chunk) const {
    if constexpr (kIndex < kBatches) {
      constexpr int kOperand = operand_of(kIndex), kFirst = first_row_of(kIndex);
      const int row = static_cast<int>(kOperand == kE ? eighth * kOuterRows : quarter * kInnerRows);
      if constexpr (kFirst == 0)
        batches.from = source(places, kOperand, chunk, row, kOperand == kE ? item.block_column + 2 * outer_pair : 2 * inner_pair);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        batches.x[kIndex % (kAhead + 1)][i] = batches.from.template load<kWhole>(chunk.has_row(row + kFirst + i));
    }
  }
  /// Prepares rows: c times its factors, d and e divided by them.
  template <int kIndex>
  __device__ __forceinline__ void prepare_batch(const Batches& batches, const float2 (&inner)[kInnerRows],
                                                const float2 (&outer)[kOuterRows]) const {
    constexpr int kOperand = operand_of(kIndex), kFirst = first_row_of(kIndex);
    constexpr bool kOfE = kOperand == kE, kScales = kOfE ? kOuterGates : kInnerGates;
    const int stage = turns % 2;
    if constexpr (kFirst == 0 && kOperand != kD) barrier_wait(kOfE ? &shared.e_empty : &shared.c_empty, (chunks & 1) ^ 1);
    const Tile& tile = kOfE ? shared.e[0] : (kOperand == kD ? shared.d[stage] : shared.c)[0][inner_pair / 32];
    unsigned first = shared_address(tile.data) + (kOfE ? eighth * kOuterRows : quarter * kInnerRows) * kRowBytes,
             pair = (kOfE ? outer_pair : inner_pair % 32) * 4;
    forget(first), forget(pair);  // otherwise the addresses of all rows would occupy registers at once
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      float2 x = batches.x[kIndex % (kAhead + 1)][j];
      if constexpr (kScales) {
        const float2 factor = kOfE ? outer[(kFirst + j) % kOuterRows] : inner[kFirst + j];
        if constexpr (kOfE)
          *reinterpret_cast<float2*>(&shared.result_decays[eighth * kOuterRows + kFirst + j][2 * outer_pair]) = factor;
        x.x *= kOperand == kC ? factor.x : reciprocal(factor.x);
        x.y *= kOperand == kC ? factor.y : reciprocal(factor.y);
      }
      std::uint32_t parts[kParts];
      split(parts, x.x, x.y);
      store_parts<kOfE ? 1 : kInnerTiles>(first, kFirst + j, pair, parts);
    }
    if constexpr (kIndex + 1 == kFirstOfE || kIndex + 1 == kBatches) {
      fence_for_wgmma();
      barrier_arrive(kOfE ? &shared.e_full : &shared.rows_full[stage]);
    }
  }
  static constexpr int kRowBytes = kTile * sizeof(bf16);
  /// Stores two neighbors in row i of those from `first` on, a multiple of eight, as SwizzledTile::pair() does; of each part in
  /// its tile, which lies kTiles tiles after the one before. `pair`: bytes in a row.
  template <int kTiles>
  __device__ __forceinline__ static void store_parts(unsigned first, int i, unsigned pair, const std::uint32_t (&parts)[kParts]) {
    const unsigned at = first + (pair ^ (i % 8 * 16));
#pragma unroll
    for (int p = 0; p < kParts; ++p)
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + p * kTiles * static_cast<int>(sizeof(Tile)) + i * kRowBytes),
                   "r"(parts[p])
                   : "memory");
  }
};

}  // namespace glade::cuda::recurrent::float_chunks
