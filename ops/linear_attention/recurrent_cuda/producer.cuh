#pragma once
// The producer warps of the recurrent kernel (recurrent_cuda/kernel.cuh), which fill its tiles and store its results.
#include <climits>

#include <glade/core/math.h>
#include <glade/ops/linear_attention/recurrent_cuda/tile.cuh>

namespace glade::cuda::recurrent {

/// A thread of the producer warps. They load the rows of the tile after the next one, convert the rows of the next tile, and
/// store the results of the previous tile. A warp owns a group of the positions of a tile, a lane owns quads of channels. Loaded
/// elements stay in registers as raw bits until the next step, because a conversion would wait for the load.
/// T and G are the types of the rows and of the gates. kVector requires aligned quads; without it, gates may also be of type T.
/// kSums says whether the pass has results, or only a final state.
template <class C, class T, class G, bool kVector, bool kSums>
class Producer {
 public:
  using F = typename C::F;

  __device__ __forceinline__ Producer(const Pass<F>& pass, const Place& place, SharedMemory<C>& memory, int thread)
      : pass_(pass),
        memory_(memory),
        lane_(thread % 32),
        group_(__shfl_sync(~0u, thread / 32, 0)),
        token_(lane_ % C::kGroupTokens),
        inner_gate_(pass.rows[kInnerGate].data != nullptr),
        outer_gate_(pass.rows[kOuterGate].data != nullptr),
        outer_decay_(has_outer_decay(pass)),
        works_(group_ < C::kGroups),
        column_(lane_ * 4 < place.columns ? place.column + lane_ * 4 : INT_MAX),
        columns_(place.columns),
        first_column_(place.column),
        out_quad_(lane_ % kRowQuads * 4),
        out_token_(group_ * C::kGroupTokens + lane_ / kRowQuads),
        factor_(static_cast<F>(pass.rows[kC].factor)),
        update_factor_(static_cast<F>(pass.rows[kD].factor * pass.rows[kE].factor)) {
    const TileRange range = TileRange::of<C>(place, pass.reverse_scan, 0);
    const std::int64_t low = std::int64_t{range.index} * C::kTokens, position = pass.reverse_scan ? low + range.count - 1 : low;
    const std::int64_t token = place.sequence.token(position),
                       gate_token = place.sequence.token(position + (pass.reverse_scan ? 1 : 0));
    step_ = pass.reverse_scan == pass.sequences.reverse ? 1 : -1;
    // The offsets of the first position of the group in the first tile.
    const int first = group_ * C::kGroupTokens * step_;
    auto start = [&](const Rows& rows, std::int64_t at) {
      return ((at + first) * rows.heads + place.h / rows.group) * rows.size;
    };
    at_[kC] = start(pass.rows[kC], token) + inner(0);
    at_[kD] = start(pass.rows[kD], token) + inner(0);
    at_[kInnerGate] = start(pass.rows[kInnerGate], gate_token) + inner(0);
    at_[kE] = start(pass.rows[kE], token) + column_;
    at_[kOuterGate] = start(pass.rows[kOuterGate], gate_token) + column_;
    head_at_ = start(pass.head_gate, gate_token) + token_ * step_ * pass.heads;
    out_at_ = ((token + out_token_ * step_) * pass.heads + place.h) * pass.outer() + place.column + out_quad_;
    gamma_ = pass.gamma_gate(place.n, place.h);
  }

  /// Loads the rows of a tile. Tiles must be loaded in the order of the scan.
  __device__ __forceinline__ void load(const TileRange& range) {
    if (!works_) return;
    const int first = group_ * C::kGroupTokens;
    Present present;
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) {
      present[t] = first + t < range.count;
      // A reverse scan applies the decay of the next position of the sequence, which the last position does not have.
      decays_[t] = present[t] && !(pass_.reverse_scan && range.last && first + t == 0);
    }
    if constexpr (kSums) load_rows<T>(kC, inner(0), present, c_);
    load_rows<T>(kD, inner(0), present, d_);
    if (inner_gate_) load_gates(kInnerGate, inner(0), inner_log_);
    load_rows<T>(kE, column_, present, e_);
    if (outer_gate_) load_gates(kOuterGate, column_, outer_log_);
    head_decays_ = first + token_ < range.count && !(pass_.reverse_scan && range.last && first + token_ == 0);
    if (pass_.head_gate.data != nullptr) {
      if (head_decays_) {
        if (kVector || has_type<G>(pass_.head_gate)) head_gate_ = static_cast<const G*>(pass_.head_gate.data)[head_at_];
        else head_gate_ = static_cast<G>(static_cast<const T*>(pass_.head_gate.data)[head_at_]);
      }
      advance(head_at_, step_ * pass_.heads);
    }
    if (range.count < C::kTokens) go_back(C::kTokens - range.count);
  }

  /// Converts the loaded rows, folds the decays into them, and writes them to shared memory. All producer warps must call it,
  /// after they have stored the previous contents of `tile`.
  __device__ __forceinline__ void convert(const TileRange& range, Tile<C>& tile) {
    const int checkpoint = checkpoint_slot<C>(pass_, range), first = group_ * C::kGroupTokens;
    Rescales rescales;
    if (checkpoint >= 0) rescales.before = 1u << checkpoint;
    __syncwarp();  // all lanes have stored the results of the previous tile in this buffer
    HeadLog head;
    if (inner_gate_ || outer_decay_) {
      if (works_) {
        head = head_log(checkpoint - first);
        publish_decays(head, checkpoint - first, first < range.count);
      }
      sync_producers();
      add_rescales(rescales);
    }
    if (!works_) return;
    if (group_ == 0 && lane_ == 0) {
      tile.index = range.index;
      tile.count = range.count;
      tile.checkpoint = checkpoint;
      tile.rescales = rescales;
    }

    // A and B contain the log decays of the earlier groups from `from` on: those after the last slot that rescales.
    const unsigned earlier = rescales.all() & ((1u << first) - 1);
    const int from = (32 - __clz(static_cast<int>(earlier))) / C::kGroupTokens;
    F self[C::kGroupTokens] = {};
#pragma unroll
    for (int r = 0; r < C::kQuads; ++r) convert_inner(r, from, rescales, tile, self);
    convert_outer(convert_head(head, from, rescales, tile), from, rescales, tile);
    if constexpr (kSums) {
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2)
#pragma unroll
        for (int t = 0; t < C::kGroupTokens; ++t) self[t] += __shfl_xor_sync(~0u, self[t], offset);
#pragma unroll
      for (int t = 0; t < C::kGroupTokens; ++t)
        if (lane_ == 0) tile.slots[first + t].self = self[t];
    }
  }

  /// Writes the results of a tile to global memory. Tiles must be stored in the order of the scan.
  __device__ __forceinline__ void store(const TileRange& range, const Tile<C>& tile) {
    if (!kSums || !works_) return;
    const int size = pass_.outer(), step = step_ * pass_.heads * size, j = out_quad_;
    const bool has_columns = j < columns_ && first_column_ + j < size;
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; t += kRows) {
      const int slot = out_token_ + t;
      if (!has_columns || slot >= range.count || t + lane_ / kRowQuads >= C::kGroupTokens) continue;
      const Slot<C>& sums = tile.slots[slot];
      Quad<F> past = at(sums.past[0], j), out;
#pragma unroll
      for (int partial = 1; partial < C::kPartials; ++partial) past = past + at(sums.past[partial], j);
      const Quad<F> e = at(sums.e, j);
      Quad<F> scale{sums.scale, sums.scale, sums.scale, sums.scale};
      if (outer_gate_ && (tile.rescales.before >> slot & 1) == 0) scale = at(sums.b, j) * sums.scale;
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        out.x[x] = (past.x[x] + sums.self * e.x[x]) * scale.x[x];
        past.x[x] *= scale.x[x];
      }
      const std::int64_t row = out_at_ + t * step;
      const int left = size - first_column_ - j;
      if (pass_.past != nullptr) store_quad<kVector>(past, pass_.past + row, 0, left);
      if (pass_.out == nullptr) continue;
      if (pass_.out_dtype == dtype_of<T>()) store_quad<kVector>(out, static_cast<T*>(pass_.out) + row, 0, left);
      else store_quad<kVector>(out, static_cast<F*>(pass_.out) + row, 0, left);
    }
    advance(out_at_, step);
    if (range.count < C::kTokens) out_at_ -= std::int64_t{C::kTokens - range.count} * step;
  }

  /// Writes the decay of the whole segment; see Pass::segment_decays. All producer warps must call it.
  __device__ void store_decays(F* decays) {
    if (works_) {
#pragma unroll
      for (int r = 0; r < C::kQuads; ++r)
        if (inner(r) < C::I) at(memory_.inner_sums[group_], inner(r)) = inner_total_[r];
      if (lane_ * 4 < C::kColumns) at(memory_.outer_sums[group_], lane_ * 4) = outer_total_;
      double head = head_total_;
#pragma unroll
      for (int offset = 1; offset < C::kGroupTokens; offset *= 2) head += __shfl_xor_sync(~0u, head, offset);
      if (lane_ == 0) memory_.head_sums[group_] = head;
    }
    sync_producers();
    auto sum = [](const auto& sums, int channel) {
      F log = 0;
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) log += sums[group][channel];
      return log;
    };
    double head = 0;
#pragma unroll
    for (const double log : memory_.head_sums) head += log;
    for (int i = group_ * 32 + lane_; i < pass_.inner(); i += kProducerWarps * 32)
      decays[i] = math::exp(static_cast<F>(sum(memory_.inner_sums, i) + head));
    for (int j = group_ * 32 + lane_; j < columns_ && first_column_ + j < pass_.outer(); j += kProducerWarps * 32)
      decays[pass_.inner() + first_column_ + j] = math::exp(sum(memory_.outer_sums, j));
  }

 private:
  using Logs = Quad<F>[C::kGroupTokens];
  using Present = bool[C::kGroupTokens];
  template <class U>
  using Group = Raw<U>[C::kGroupTokens];

  /// The log decay that all channels share at the lane's position, which is number lane % kGroupTokens of the group.
  struct HeadLog {
    double own = 0, sum = 0;  ///< sum: from the start of the group, or after its checkpoint
  };

  static constexpr int kRowQuads = C::kColumns / 4,
                       kRows = 32 / kRowQuads;  ///< quads of a row of the block; rows that a warp stores at once

  /// Moves an offset to the next tile; `step` is the distance of two positions in elements.
  static __device__ __forceinline__ void advance(std::int64_t& at, int step) { at += std::int64_t{C::kTokens} * step; }

  /// Corrects the offsets after a partial tile, which advance() counts as a full one. A reverse scan starts with such a tile.
  __device__ __forceinline__ void go_back(int positions) {
    const std::int64_t tokens = positions * step_;
#pragma unroll
    for (int operand = 0; operand < kOperands; ++operand)
      at_[operand] -= tokens * (pass_.rows[operand].heads * pass_.rows[operand].size);
    head_at_ -= tokens * pass_.heads;
  }

  __device__ int inner(int r) const { return (lane_ + r * 32) * 4; }

  static __device__ Quad<F>& at(F* row, int channel) { return *reinterpret_cast<Quad<F>*>(row + channel); }
  static __device__ const Quad<F>& at(const F* row, int channel) { return *reinterpret_cast<const Quad<F>*>(row + channel); }

  /// Loads quads of channels of the group's rows, which have type From. It skips absent positions and channels.
  template <class From, class U, int n>
  __device__ __forceinline__ void load_rows(Operand operand, int channel, const Present& present, Group<U> (&groups)[n]) {
    const Rows& rows = pass_.rows[operand];
    const int step = step_ * rows.heads * rows.size;
    const From* from = static_cast<const From*>(rows.data) + at_[operand];
#pragma unroll
    for (int r = 0; r < n; ++r)
#pragma unroll
      for (int t = 0; t < C::kGroupTokens; ++t)
        load_quad<kVector>(from + std::int64_t{t} * step + r * 128, rows.size - channel - r * 128,
                           present[t] && channel + r * 128 < rows.size, groups[r][t]);
    advance(at_[operand], step);
  }
  template <int n>
  __device__ __forceinline__ void load_gates(Operand operand, int channel, Group<G> (&groups)[n]) {
#pragma unroll
    for (int r = 0; r < n; ++r)
#pragma unroll
      for (int t = 0; t < C::kGroupTokens; ++t)
        if (!decays_[t]) groups[r][t] = Raw<G>();
    if (kVector || has_type<G>(pass_.rows[operand])) load_rows<G>(operand, channel, decays_, groups);
    else if constexpr (!kVector) load_rows<T>(operand, channel, decays_, groups);
  }

  /// `checkpoint` is the number of the checkpoint in the group; any number outside of the group means that it has none.
  __device__ __forceinline__ HeadLog head_log(int checkpoint) const {
    double own = 0;
    if (head_decays_) {
      own = gamma_;
      if (pass_.head_gate.data != nullptr) own += static_cast<double>(static_cast<F>(head_gate_));
    }
    double sum = own;
#pragma unroll
    for (int offset = 1; offset < C::kGroupTokens; offset *= 2) {
      const double earlier = __shfl_up_sync(~0u, sum, offset, C::kGroupTokens);
      if (token_ >= offset && (token_ > checkpoint) == (token_ - offset > checkpoint)) sum += earlier;
    }
    return {own, sum};
  }

  /// Writes to shared memory what other groups need of this one: a bound of its log decays, for add_rescales(), and the sums of
  /// its log decays after its checkpoint, with which later groups start. `present` says whether the group has positions in the
  /// tile; otherwise its registers hold rows of an earlier tile, which must not force a rescale.
  __device__ __forceinline__ void publish_decays(const HeadLog& head, int checkpoint, bool present) {
    // The bits of non-negative floats order like the floats, with NaN above all, so integer maxima serve.
    std::uint32_t inner_range = 0, outer_range = 0, largest = 0;
    auto add = [&](const Group<G>& logs, std::uint32_t& range, Quad<F>& total, F* sums) {
      Quad<F> sum{};
      float all[4] = {};
#pragma unroll
      for (int t = 0; t < C::kGroupTokens; ++t) {
        const Quad<F> log = logs[t].template values<F>();
        sum = sum + log;
        if constexpr (!kSums) total = total + log;
#pragma unroll
        for (int x = 0; x < 4; ++x) all[x] += fabsf(static_cast<float>(log.x[x]));
        if (t == checkpoint) sum = Quad<F>{};
      }
      at(sums, 0) = sum;
#pragma unroll
      for (const float x : all) range = max(range, __float_as_uint(x));
    };
#pragma unroll
    for (int r = 0; r < C::kQuads; ++r) {
#pragma unroll
      for (const Raw<T>& row : d_[r]) largest = row.largest(largest);
      if (inner_gate_ && inner(r) < C::I) add(inner_log_[r], inner_range, inner_total_[r], &memory_.inner_sums[group_][inner(r)]);
    }
#pragma unroll
    for (const Raw<T>& row : e_[0]) largest = row.largest(largest);
    float range = 0;
    if (inner_gate_) range += __uint_as_float(__reduce_max_sync(~0u, inner_range));
    if (outer_gate_) {
      if (lane_ * 4 < C::kColumns) add(outer_log_[0], outer_range, outer_total_, &memory_.outer_sums[group_][lane_ * 4]);
      range += __uint_as_float(__reduce_max_sync(~0u, outer_range));
    }
    range *= 2;  // margin, because the rounding errors of float32 sums grow with them
    float head_range = fabsf(static_cast<float>(head.own));
#pragma unroll
    for (int offset = 1; offset < C::kGroupTokens; offset *= 2) head_range += __shfl_xor_sync(~0u, head_range, offset);
    range += head_range;
    if constexpr (!kSums) head_total_ += head.own;
    if (__any_sync(~0u, present && Raw<T>::exceeds(largest, kFoldExponent))) range = INFINITY;
    if (lane_ != C::kGroupTokens - 1) return;
    memory_.head_sums[group_] = checkpoint == token_ ? 0 : head.sum;
    memory_.ranges[group_] = range;
  }

  /// Adds the slots that must rescale so that the decays between them stay within kFoldRange. It rescales between two groups
  /// where it can, so that the unrolled inner loop has no remainder.
  __device__ __forceinline__ void add_rescales(Rescales& rescales) const {
    float range = 0;
#pragma unroll
    for (const float own : memory_.ranges) range += own;
    if (range <= kFoldRange) return;
    range = 0;
#pragma unroll
    for (int group = 0; group < C::kGroups; ++group) {
      const float own = memory_.ranges[group];
      range += own;
      if (range <= kFoldRange) continue;
      range = own;
      if (own <= kFoldRange) {
        rescales.after |= (1u << (group * C::kGroupTokens)) >> 1;
      } else {
        rescales.before |= ((1u << C::kGroupTokens) - 1) << (group * C::kGroupTokens);
        range = 0;
      }
    }
  }

  /// Calls f for the earlier groups from `from` on, whose log decays this group starts with.
  template <class Function>
  __device__ __forceinline__ void each_earlier_group(int from, Function f) const {
#pragma unroll
    for (int group = 0; group < C::kGroups - 1; ++group)
      if (group >= from && group < group_) f(group);
  }

  /// Adds a gate to `log`, the sum of the log decays in base 2, and returns the decay; after a rescale the sum restarts at 0.
  static __device__ __forceinline__ F advance(F& log, F gate, bool rescale) {
    log += gate * static_cast<F>(kLog2e);
    const F decay = power_of_2<F>(log);
    if (rescale) log = 0;
    return decay;
  }

  __device__ __forceinline__ void convert_inner(int r, int from, const Rescales& rescales, Tile<C>& tile,
                                                F (&self)[C::kGroupTokens]) const {
    const int i = inner(r), first = group_ * C::kGroupTokens;
    if (i >= C::I) return;
    Quad<F> log{};
    if (inner_gate_) {
      each_earlier_group(from, [&](int group) { log = log + at(memory_.inner_sums[group], i); });
      log = log * static_cast<F>(kLog2e);
    }
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) {
      const int slot = first + t;
      const bool rescale = rescales.before >> slot & 1;
      Quad<F> c{}, d = d_[r][t].template values<F>();
      if constexpr (kSums) {
        c = c_[r][t].template values<F>();
#pragma unroll
        for (int x = 0; x < 4; ++x) self[t] += c.x[x] * d.x[x];
      }
      if (inner_gate_) {
        const Quad<F> gate = inner_log_[r][t].template values<F>();
        Quad<F> a;
#pragma unroll
        for (int x = 0; x < 4; ++x) a.x[x] = advance(log.x[x], gate.x[x], rescale);
        if ((rescales.all() >> slot & 1) != 0 || slot == C::kTokens - 1) at(tile.slots[slot].a, i) = a;
        if (!rescale) {
#pragma unroll
          for (int x = 0; x < 4; ++x) {
            c.x[x] *= a.x[x];
            d.x[x] *= reciprocal(a.x[x]);
          }
        }
      }
      if constexpr (kSums) at(tile.slots[slot].c, i) = c;
      at(tile.slots[slot].d, i) = d;
    }
  }

  /// Writes H of the lane's position, and returns the factor of the update of the state at that position.
  __device__ __forceinline__ F convert_head(const HeadLog& head, int from, const Rescales& rescales, Tile<C>& tile) const {
    const int first = group_ * C::kGroupTokens;
    F decay = 1, scale = factor_, update = update_factor_;
    if (outer_decay_) {
      double log = head.sum;
      const unsigned earlier = (rescales.before >> first & ((1u << token_) - 1)) << 1;  // bit token_: the previous position
      if (earlier == 0) each_earlier_group(from, [&](int group) { log += memory_.head_sums[group]; });
      else if ((earlier >> token_ & 1) != 0) log = head.own;
      decay = power_of_2_of<F>(log * kLog2e);
      if ((rescales.before >> (first + token_) & 1) == 0) scale *= decay, update *= reciprocal(decay);
    }
    if (lane_ < C::kGroupTokens) tile.slots[first + lane_].head = decay, tile.slots[first + lane_].scale = scale;
    return update;
  }

  /// `update` is the factor that convert_head() returned for the lane's position.
  __device__ __forceinline__ void convert_outer(F update, int from, const Rescales& rescales, Tile<C>& tile) const {
    F updates[C::kGroupTokens];
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) updates[t] = __shfl_sync(~0u, update, t);
    const int column = lane_ * 4;
    if (column >= columns_) return;
    Quad<F> log{};
    if (outer_gate_) {
      each_earlier_group(from, [&](int group) { log = log + at(memory_.outer_sums[group], column); });
      log = log * static_cast<F>(kLog2e);
    }
#pragma unroll
    for (int t = 0; t < C::kGroupTokens; ++t) {
      const int slot = group_ * C::kGroupTokens + t;
      const bool rescale = rescales.before >> slot & 1;
      Quad<F> e = e_[0][t].template values<F>() * updates[t];
      if (outer_gate_) {
        const Quad<F> gate = outer_log_[0][t].template values<F>();
        Quad<F> b;
#pragma unroll
        for (int x = 0; x < 4; ++x) b.x[x] = advance(log.x[x], gate.x[x], rescale);
        at(tile.slots[slot].b, column) = b;
        if (!rescale) {
#pragma unroll
          for (int x = 0; x < 4; ++x) e.x[x] *= reciprocal(b.x[x]);
        }
      }
      at(tile.slots[slot].e, column) = e;
    }
  }

  const Pass<F>& pass_;
  SharedMemory<C>& memory_;
  const int lane_, group_, token_;  ///< token_: the position in the group whose shared decay the lane computes
  const bool inner_gate_, outer_gate_, outer_decay_, works_;
  const int out_quad_, out_token_;  ///< the first quad that the lane stores of a tile: its column in the block, and its slot
  const int column_, columns_, first_column_;  ///< column_: the first one of the lane in the rows, or INT_MAX if it has none
  const F factor_, update_factor_;             ///< factors of the results, and of the updates of the state
  F gamma_ = 0;
  int step_;  ///< from the token of a slot to that of the next slot

  std::int64_t at_[kOperands], head_at_, out_at_;  ///< offsets of the next rows to load, and of the next results to store
  Group<T> c_[C::kQuads], d_[C::kQuads], e_[1];
  Group<G> inner_log_[C::kQuads], outer_log_[1];
  G head_gate_;                                          ///< at the lane's position
  bool head_decays_ = false;                             ///< whether the shared decay of the lane's position applies
  Present decays_ = {};                                  ///< whether the gates of each position apply
  Quad<F> inner_total_[C::kQuads] = {}, outer_total_{};  ///< sums of the log decays over all tiles
  double head_total_ = 0;                                ///< the same of the shared decays, at the lane's positions
};

}  // namespace glade::cuda::recurrent
