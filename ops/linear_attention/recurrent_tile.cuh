#pragma once
// What the kernel of recurrent_kernel.cuh takes from global memory, and in which form it reaches the warps that compute.
//
// A block goes through the positions in tiles. Decays never reach the inner loop: with A_p the product of a tile's decays
// up to position p, the block keeps X / A, so that a position costs two multiply-adds a state element:
//     past = (c_p A_p) (X / A),       X / A  +=  (d_p / A_p) e_p^T
// for inner channels, and with e_p / B_p, and past * B_p at the end, for outer ones. X / A is multiplied with A at the end
// of the tile. That is exact to rounding while A neither underflows nor grows: while all logarithms of the tile are <= 0
// and their sums not below -kFoldRange. Other tiles "rescale" at every position, where A starts from 1 again: their
// decays, down to 0 for a gate of -inf, multiply the state itself. So does a position whose decayed state is needed.
#include <algorithm>

#include <glade/core/math.h>
#include <glade/ops/linear_attention/recurrent_pass.cuh>

namespace glade::cuda::recurrent {

constexpr int kComputeWarps = 4, kProducerWarps = 8;
constexpr int kFoldRange = 56;

/// How a kernel for up to I inner channels splits its work.
template <class F_, int I_>
struct Config {
  using F = F_;
  static constexpr int I = I_;

  static constexpr int kInnerLanes = I <= 32 ? 8 : I <= 128 ? 16 : 32;
  static constexpr int kInner = I / kInnerLanes;  ///< inner channels of a thread
  static constexpr int kOuterLanes = 32 / kInnerLanes;
  static constexpr int kOuter = (kInner <= 8 ? 8 : 4) * 4 / static_cast<int>(sizeof(F));  ///< columns of a thread
  static constexpr int kWarpColumns = kOuterLanes * kOuter;
  static constexpr int kColumns = kComputeWarps * kWarpColumns;  ///< of a block, at most

  static constexpr int kQuads = (I + 127) / 128;  ///< quads of inner channels of a producer's lane
  static constexpr int kTokens = 16 * 4 / (kQuads * static_cast<int>(sizeof(F)));                      ///< positions of a tile
  static constexpr int kGroups = std::min(kTokens, kProducerWarps), kGroupTokens = kTokens / kGroups;  ///< a group a warp
};

/// The rows of a tile's positions, in the order in which they are taken.
template <class C>
struct alignas(16) Tile {
  using F = typename C::F;
  F c[C::kTokens][C::I];                ///< c A
  F d[C::kTokens][C::I];                ///< d / A
  F a[C::kTokens][C::I];                ///< A where the position rescales, and at the last position
  F e[C::kTokens][C::kColumns];         ///< e / B
  F b[C::kTokens][C::kColumns];         ///< B
  F past[C::kTokens + 1][C::kColumns];  ///< before * B; the first row is for nothing
  F self[C::kTokens];                   ///< c . d
  unsigned rescales;                    ///< a bit a position
};
template <class C>
struct SharedMemory {
  Tile<C> tiles[2];
  typename C::F inner_sums[C::kGroups][C::I], outer_sums[C::kGroups][C::kColumns];  ///< of the groups' logarithms
};

/// What a block works on.
struct Place {
  std::int64_t n;
  Sequence sequence;
  int h, column, columns;  ///< the head; the block's first column and the number of its columns
  int segment;
  std::int64_t low, high;  ///< the segment's positions
};

/// Positions of one tile.
struct Span {
  std::int64_t low;
  int count;
  bool down;
  __device__ std::int64_t position(int slot) const { return down ? low + count - 1 - slot : low + slot; }
};

/// The slot whose position is a checkpoint; -1: none.
template <class F>
__device__ int checkpoint_slot(const Pass<F>& pass, const Place& place, const Span& span) {
  const std::int64_t high = span.low + span.count;
  if (pass.states == nullptr || (high % pass.sequences.interval != 0 && high != place.sequence.length)) return -1;
  return pass.down ? 0 : span.count - 1;
}

/// A thread of the warps that load the rows of the tile after the next, convert those of the next and store the results
/// of the last. A warp has a group of a tile's positions, a lane quads of channels. Loaded elements wait in registers as
/// they lie in memory, since a conversion would wait for them. kVector: see load_quads.
template <class C, bool kVector>
class Producer {
 public:
  using F = typename C::F;

  __device__ Producer(const Pass<F>& pass, const Place& place, SharedMemory<C>& memory, int thread)
      : pass_(pass), place_(place), memory_(memory), lane_(thread % 32), group_(thread / 32) {
    if (pass.gamma != nullptr) gamma_ = pass.gamma[place.n * pass.heads + place.h];
#pragma unroll
    for (int operand = 0; operand < kOperands; ++operand) {
      const Rows& rows = pass.rows[operand];
      const int channel = operand < kE ? inner(0) : place.column + column();
      first_[operand] = place.h / rows.group * rows.size + channel;
    }
  }

  __device__ void load(const Span& span) {
    if (group_ >= C::kGroups) return;
    const int first = group_ * C::kGroupTokens, above = pass_.down ? 1 : 0;
    const std::int64_t position = span.position(first), up = pass_.down ? -1 : 1;
    present_ = decays_ = 0;
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) {
      present_ |= (first + t < span.count ? 1u : 0u) << t;
      decays_ |= (position + up * t + above < place_.sequence.length ? present_ & (1u << t) : 0u);
    }
    const std::int64_t token = place_.sequence.token(position), gate_token = place_.sequence.token(position + above);
#pragma unroll
    for (int r = 0; r < C::kQuads; ++r) {
      load_group(kC, token, inner(r), inner(r) - inner(0), present_, c_[r]);
      load_group(kD, token, inner(r), inner(r) - inner(0), present_, d_[r]);
      load_group(kInnerGate, gate_token, inner(r), inner(r) - inner(0), decays_, inner_gate_[r]);
    }
    const bool with_column = column() < place_.columns;
    load_group(kE, token, place_.column + column(), 0, with_column ? present_ : 0, e_);
    load_group(kOuterGate, gate_token, place_.column + column(), 0, with_column ? decays_ : 0, outer_gate_);
    if (pass_.head_gate.data == nullptr) return;
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t)
      head_gate_[t] = decays_ >> t & 1 ? load_bits<F>(pass_.head_gate, (gate_token + t * step()) * pass_.heads + place_.h) : 0;
  }

  /// Writes the loaded rows to shared memory. Called by all producers; the tile's place is free once all of them are here.
  __device__ void convert(const Span& span, Tile<C>& tile) {
    const bool inner_gate = pass_.rows[kInnerGate].data != nullptr, outer_gate = pass_.rows[kOuterGate].data != nullptr;
    const bool works = group_ < C::kGroups;
    const int checkpoint = checkpoint_slot(pass_, place_, span), first = group_ * C::kGroupTokens;

    Quad<F> a[C::kQuads][C::kGroupTokens], b[C::kGroupTokens];  // logarithms
    bool folds = true;
    if (works) {
      F shared[C::kGroupTokens] = {};
      if (pass_.head_gate.data != nullptr) decode(pass_.head_gate, head_gate_, shared);
#pragma unroll
      for (int t = 0; t < C::kGroupTokens; ++t) shared[t] += decays_ >> t & 1 ? gamma_ : F{0};
#pragma unroll
      for (int r = 0; r < C::kQuads; ++r) {
        if (inner_gate) decode(pass_.rows[kInnerGate], inner_gate_[r], a[r]);
#pragma unroll
        for (int t = 0; t < C::kGroupTokens; ++t)
#pragma unroll
          for (int x = 0; x < 4; ++x) a[r][t].x[x] = inner_gate ? a[r][t].x[x] + shared[t] : shared[t];
        folds = can_fold(a[r], inner_log_[r]) && folds;
        if (inner(r) < C::I) at(memory_.inner_sums[group_], inner(r)) = since_checkpoint(a[r], checkpoint - first);
      }
      if (outer_gate) {
        decode(pass_.rows[kOuterGate], outer_gate_, b);
        folds = can_fold(b, outer_log_) && folds;
        if (column() < C::kColumns) at(memory_.outer_sums[group_], column()) = since_checkpoint(b, checkpoint - first);
      }
    }
    folds = all_producers(folds);
    if (!works) return;
    const unsigned rescales = (folds ? 0u : (1u << C::kTokens) - 1) | (checkpoint < 0 ? 0u : 1u << checkpoint);
    if (group_ == 0 && lane_ == 0) tile.rescales = rescales;

    // The groups below this one whose logarithms count in A.
    const int from = !folds ? group_ : checkpoint >= 0 && checkpoint < first ? checkpoint / C::kGroupTokens : 0;
    F self[C::kGroupTokens] = {};
#pragma unroll
    for (int r = 0; r < C::kQuads; ++r) {
      const int i = inner(r);
      if (i >= C::I) break;
      Quad<F> log{}, c[C::kGroupTokens], d[C::kGroupTokens];
#pragma unroll
      for (int group = 0; group < C::kGroups - 1; ++group)
        if (group >= from && group < group_) log = log + at(memory_.inner_sums[group], i);
      to_decays(a[r], log, rescales >> first, inner_gate);
      decode(pass_.rows[kC], c_[r], c);
      decode(pass_.rows[kD], d_[r], d);
      const F factor = static_cast<F>(pass_.rows[kD].factor);
#pragma unroll
      for (int t = 0; t < C::kGroupTokens; ++t) {
        const int slot = first + t;
        const bool rescale = rescales >> slot & 1;
        if (rescale || slot == C::kTokens - 1) at(tile.a[slot], i) = a[r][t];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const F A = rescale ? F{1} : a[r][t].x[x];
          d[t].x[x] *= factor;
          self[t] += c[t].x[x] * d[t].x[x];
          c[t].x[x] *= A;
          d[t].x[x] *= reciprocal(A);
        }
        at(tile.c[slot], i) = c[t];
        at(tile.d[slot], i) = d[t];
      }
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
#pragma unroll
      for (int t = 0; t < C::kGroupTokens; ++t) self[t] += __shfl_xor_sync(~0u, self[t], offset);
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t)
      if (lane_ == 0) tile.self[first + t] = self[t];
    if (column() >= place_.columns) return;
    Quad<F> e[C::kGroupTokens];
    decode(pass_.rows[kE], e_, e);
    if (outer_gate) {
      Quad<F> log{};
#pragma unroll
      for (int group = 0; group < C::kGroups - 1; ++group)
        if (group >= from && group < group_) log = log + at(memory_.outer_sums[group], column());
      to_decays(b, log, rescales >> first, true);
    }
    const F factor = static_cast<F>(pass_.rows[kE].factor);
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) {
      const bool divides = outer_gate && (rescales >> (first + t) & 1) == 0;
      if (outer_gate) at(tile.b[first + t], column()) = b[t];
#pragma unroll
      for (int x = 0; x < 4; ++x) e[t].x[x] *= divides ? factor * reciprocal(b[t].x[x]) : factor;
      at(tile.e[first + t], column()) = e[t];
    }
  }

  /// Writes the results of a tile to global memory.
  __device__ void store(const Span& span, const Tile<C>& tile) const {
    if ((pass_.out == nullptr && pass_.past == nullptr) || group_ >= C::kGroups) return;
    const bool outer_gate = pass_.rows[kOuterGate].data != nullptr;
    const int size = pass_.outer(), quads = place_.columns / 4, shift = 31 - __clz(quads);  // a power of 2
    const F factor = static_cast<F>(pass_.rows[kC].factor);
    for (int work = lane_; work < C::kGroupTokens * quads; work += 32) {
      const int slot = group_ * C::kGroupTokens + (work >> shift), j = (work & (quads - 1)) * 4;
      if (slot >= span.count || place_.column + j >= size) continue;
      const bool multiplies = outer_gate && (tile.rescales >> slot & 1) == 0;
      Quad<F> past = at(tile.past[slot + 1], j), out;
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const F scale = multiplies ? factor * tile.b[slot][j + x] : factor;
        out.x[x] = (past.x[x] + tile.self[slot] * tile.e[slot][j + x]) * scale;
        past.x[x] *= scale;
      }
      const std::int64_t row = (place_.sequence.token(span.position(slot)) * pass_.heads + place_.h) * size;
      if (pass_.past != nullptr) store_quad(past, pass_.past + row, place_.column + j, size);
      if (pass_.out == nullptr) continue;
      visit_rows<F>(pass_.out_dtype,
                    [&]<class T>(const T*) { store_quad(out, static_cast<T*>(pass_.out) + row, place_.column + j, size); });
    }
  }

  /// Writes the decay of all positions: see Pass::segment_decays. Called by all producers.
  __device__ void store_decays(F* decays) {
    if (group_ < C::kGroups) {
#pragma unroll
      for (int r = 0; r < C::kQuads; ++r)
        if (inner(r) < C::I) at(memory_.inner_sums[group_], inner(r)) = inner_log_[r];
      if (column() < C::kColumns) at(memory_.outer_sums[group_], column()) = outer_log_;
    }
    all_producers(true);
    auto decay = [](const auto& sums, int channel) {
      F log = 0;
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) log += sums[group][channel];
      return math::exp(log);
    };
    for (int i = group_ * 32 + lane_; i < pass_.inner(); i += kProducerWarps * 32) decays[i] = decay(memory_.inner_sums, i);
    for (int j = group_ * 32 + lane_; j < place_.columns && place_.column + j < pass_.outer(); j += kProducerWarps * 32)
      decays[pass_.inner() + place_.column + j] = decay(memory_.outer_sums, j);
  }

 private:
  using Group = RawQuad<F>[C::kGroupTokens];
  using Logarithms = Quad<F>[C::kGroupTokens];

  __device__ int inner(int r) const { return (lane_ + r * 32) * 4; }
  __device__ int column() const { return lane_ * 4; }
  /// From a slot's token to that of the next.
  __device__ std::int64_t step() const { return pass_.down == pass_.sequences.flip ? 1 : -1; }

  static __device__ Quad<F>& at(F* row, int channel) { return *reinterpret_cast<Quad<F>*>(row + channel); }
  static __device__ const Quad<F>& at(const F* row, int channel) { return *reinterpret_cast<const Quad<F>*>(row + channel); }

  /// Loads a quad of channels of the group's rows, zeros where the bit of the row is not set. `past` first_'s channel.
  __device__ void load_group(Operand operand, std::int64_t token, int channel, int past, unsigned present, Group& group) const {
    const Rows& rows = pass_.rows[operand];
    if (rows.data == nullptr || channel >= rows.size) present = 0;
    const std::int64_t stride = static_cast<std::int64_t>(rows.heads) * rows.size;
    load_quads<kVector>(rows, token * stride + first_[operand] + past, step() * stride, rows.size - channel, present, group);
  }

  /// Whether a tile with these logarithms can do without rescaling; adds them to `total`.
  static __device__ bool can_fold(const Logarithms& logs, Quad<F>& total) {
    bool falls = true;
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      F sum = 0;
#pragma unroll
      for (const Quad<F>& log : logs) {
        falls = falls && log.x[x] <= 0;
        sum += log.x[x];
      }
      falls = falls && sum >= -kFoldRange / C::kGroups;
      total.x[x] += sum;
    }
    return falls;
  }

  /// Sum of the logarithms after that of the checkpoint.
  static __device__ Quad<F> since_checkpoint(const Logarithms& logs, int checkpoint) {
    Quad<F> sum{};
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) sum = t == checkpoint ? Quad<F>{} : sum + logs[t];
    return sum;
  }

  /// Turns logarithms into those of A, starting from `log`, and them into A. each: they differ from channel to channel.
  static __device__ void to_decays(Logarithms& logs, Quad<F> log, unsigned rescales, bool each) {
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) {
      logs[t] = log + logs[t];
      log = rescales >> t & 1 ? Quad<F>{} : logs[t];
    }
    if (each) {
#pragma unroll
      for (Quad<F>& quad : logs)
#pragma unroll
        for (F& x : quad.x) x = math::exp(x);
    } else {
#pragma unroll
      for (Quad<F>& quad : logs) {
        const F x = math::exp(quad.x[0]);
        quad = {{x, x, x, x}};
      }
    }
  }

  /// A barrier of the producers: whether x holds for all of them.
  static __device__ bool all_producers(bool x) {
    int result;
    asm volatile("{\n\t.reg .pred p, q;\n\tsetp.ne.s32 p, %1, 0;\n\tbar.red.and.pred q, 1, %2, p;\n\tselp.s32 %0, 1, 0, q;\n\t}"
                 : "=r"(result)
                 : "r"(static_cast<int>(x)), "n"(kProducerWarps * 32)
                 : "memory");
    return result != 0;
  }

  const Pass<F>& pass_;
  const Place& place_;
  SharedMemory<C>& memory_;
  const int lane_, group_;
  int first_[kOperands];  ///< the thread's first element, or first column's, in the rows of a token
  F gamma_ = 0;

  Group c_[C::kQuads], d_[C::kQuads], inner_gate_[C::kQuads], e_, outer_gate_;
  Bits<F> head_gate_[C::kGroupTokens];
  unsigned present_, decays_;                        ///< a bit a position of the group: it is there; a gate applies to it
  Quad<F> inner_log_[C::kQuads] = {}, outer_log_{};  ///< sums of logarithms over all tiles
};

}  // namespace glade::cuda::recurrent
