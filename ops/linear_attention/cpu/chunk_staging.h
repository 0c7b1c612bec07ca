#pragma once
// One chunk of the gated recurrence on the CPU: its staged rows, its decays, and products with lower-triangular matrices.
#include <array>

#include <glade/ops/linear_attention/cpu/staging.h>

namespace glade::cpu {

constexpr std::int64_t kChunk = 64;  // largest number of tokens of a chunk

/// The kept state [values][K] before the token at `position`, a multiple of r.checkpoint_interval. Its rows are whole lines.
template <class F>
F* kept_state(const Recurrence& r, const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t position) {
  const std::int64_t interval = r.checkpoint_interval,
                     place = (sequence.begin / interval + n + position / interval) * r.heads + h;
  return r.kept.data<F>() + place * padded(r.V, kLine<F>) * padded(r.K, kLine<F>);
}

/// A staged chunk. Let b_t be the sum of the log decays of its tokens up to t, and S the state before it. Then
///     o_t = sum_{j <= t} (q_t . e^{b_t - b_j} k_j) v_j + (e^{b_t} q_t) S
///     S'  = e^{b_C} S + sum_j (e^{b_C - b_j} k_j) v_j^T
/// Decays that all channels of a head share (`shared`) are applied directly, as `mask`, `from_start` and `to_end`; no exponent is
/// positive. Per-channel decays (`per_channel`) are split: q_t and k_t are multiplied by e^{b_t - r} and e^{r - b_t}, with r
/// halfway between the first and the last b, and the state by `lead` = e^r before the chunk and by `trail` = e^{b_C - r} after
/// it. This is accurate while b stays near r, so a chunk ends before the first token whose log decay since the chunk's first
/// token exceeds kSafeRange in any channel. The decay of the first token itself is contained in `lead` alone, and its gate may be
/// as low as -inf. With large decay, where a chunk would have fewer than kFewest tokens, the tokens are processed step by step
/// instead (`by_steps`), which is accurate for all gates and then also faster.
template <class T>
struct Chunk {
  using F = compute_t<T>;
  static constexpr F kSafeRange = 16;
  static constexpr std::int64_t kFewest = 8;

  static constexpr std::int64_t kStrip = 16;  ///< rows that are multiplied at once, at the width of the longest

  bool per_channel, shared;  ///< how decays are applied; at most one is set, neither without gates
  bool by_steps = false;
  std::int64_t count = 0;
  Rows<F> q, k, v, grad_o;     ///< q is scaled; q and k contain their decays if per_channel and not by_steps
  Rows<F> decay, lead, trail;  ///< per_channel: e^{b_t - r}, and the factors of the state; by_steps: the decays of each token
  Rows<F> mask;                ///< shared: e^{b_t - b_j} at (t, j), 0 for j > t
  std::array<F, kChunk> from_start, to_end;  ///< shared: e^{b_t} and e^{b_C - b_t}
  F total;                                   ///< shared: e^{b_C}

  /// A chunk has at most `tokens` tokens. The chunk to be loaded next lies `ahead` tokens from it, for prefetching.
  Chunk(const Recurrence& recurrence, std::int64_t tokens, std::int64_t ahead)
      : per_channel(recurrence.gk.defined()),
        shared(!per_channel && (recurrence.g.defined() || recurrence.g_gamma.defined())),
        q(kChunk, recurrence.K),
        k(kChunk, recurrence.K),
        v(kChunk, recurrence.V),
        grad_o(kChunk, recurrence.V),
        decay(kChunk, recurrence.K),
        lead(1, recurrence.K),
        trail(1, recurrence.K),
        mask(kChunk, kChunk),
        r_(recurrence),
        capacity_(tokens),
        ahead_(ahead) {}

  /// Stages the keys, values and decays of the chunk of head h that begins at `position` and has at most `limit` tokens. Sets
  /// `count` and `by_steps`.
  void load(const Sequence& of, std::int64_t n, std::int64_t h, std::int64_t position, std::int64_t limit, Columns columns) {
    count = std::min(capacity_, limit);
    std::array<F, kChunk> gates;
    load_head_gates<T>(r_, of, n, h, position, count, gates.data());
    if (per_channel) {
      const std::int64_t most = count;
      load_channel_gates<T>(r_, of, h, position, count, gates.data(), decay, ahead_);
      count = simd_.channel_decays(most, decay.row(), kSafeRange, decay[0], lead[0], trail[0]);
      by_steps = count < std::min(most, kFewest);
      if (by_steps) {
        count = most;
        load_channel_gates<T>(r_, of, h, position, count, gates.data(), decay, ahead_);
        simd_.exponentials(count * decay.row(), decay[0]);
      }
    } else if (shared) {
      compute_shared_decays(gates);
    }
    const std::int64_t kv_head = h / r_.group();
    load_rows<T>(r_.k, HeadRows(of, position, r_.kv_heads, kv_head, r_.K), count, r_.K, k, ahead_);
    load_rows<T>(r_.v, HeadRows(of, position, r_.kv_heads, kv_head, r_.V, columns.begin), count, columns.size(), v, ahead_);
    if (per_channel && !by_steps) simd_.divide_elements(count * k.row(), decay[0], k[0]);
  }
  /// Stages the queries of the chunk that load() staged.
  void load_queries(const Sequence& of, std::int64_t h, std::int64_t position) {
    load_rows<T>(r_.q, HeadRows(of, position, r_.heads, h, r_.K), count, r_.K, q, ahead_, static_cast<F>(r_.scale));
    if (per_channel && !by_steps) simd_.multiply_elements(count * q.row(), decay[0], q[0]);
  }

  /// The staged rows, as the step-by-step kernels read them.
  StagedSteps<F> steps() const { return {q[0], k[0], decay[0], v[0], nullptr, grad_o[0], count, k.row(), v.row()}; }

  /// Sets `out` to the lower triangle of x y^T, multiplied by `mask` if `shared`. y is passed transposed; `inner` is the length
  /// of the rows of x and y.
  void scores(const Rows<F>& x, const Rows<F>& y_transposed, std::int64_t inner, Rows<F>& out) const {
    for (std::int64_t t = 0; t < count; t += kStrip) {
      const std::int64_t rows = std::min(kStrip, count - t), columns = padded(t + rows, kLine<F>);
      simd_.multiply(rows, columns, inner, x[t], x.row(), 1, y_transposed[0], y_transposed.row(), out[t], out.row(), false);
      if (shared) simd_.multiply_elements(rows * out.row(), mask[t], out[t]);
      for (std::int64_t i = t; i < t + rows; ++i) std::fill(out[i] + i + 1, out[i] + columns, F{0});  // mask leaves NaN there
    }
  }
  /// Adds lower x to `out`, for a lower-triangular matrix `lower`. In strips of more than one row, rows of x that are not finite
  /// reach rows of `out` before them, though by factors of zero.
  void add_lower(const Rows<F>& lower, const Rows<F>& x, std::int64_t columns, Rows<F>& out, std::int64_t strip = kStrip) const {
    for (std::int64_t t = 0; t < count; t += strip) {
      const std::int64_t rows = std::min(strip, count - t);
      simd_.multiply(rows, columns, t + rows, lower[t], lower.row(), 1, x[0], x.row(), out[t], out.row(), true);
    }
  }
  /// Sets `out` to lower^T x, or adds lower^T x if `add`. The rows of `out` are as long as those of x.
  void multiply_lower_transposed(const Rows<F>& lower, const Rows<F>& x, std::int64_t columns, F* out, bool add) const {
    for (std::int64_t t = 0; t < count; t += kStrip)
      simd_.multiply(std::min(kStrip, count - t), columns, count - t, lower[t] + t, 1, lower.row(), x[t], x.row(),
                     out + t * x.row(), x.row(), add);
  }

 private:
  void compute_shared_decays(const std::array<F, kChunk>& gates) {
    constexpr double kForgotten = -1000;  // e^x is 0 from here on even in float64, and sums stay finite
    std::array<double, kChunk> sums;
    double sum = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      const auto gate = static_cast<double>(gates[static_cast<std::size_t>(t)]);
      sum += gate < kForgotten ? kForgotten : gate;
      sums[static_cast<std::size_t>(t)] = sum;
    }
    for (std::int64_t t = 0; t < count; ++t) {
      const double sum_to_t = sums[static_cast<std::size_t>(t)];
      from_start[static_cast<std::size_t>(t)] = static_cast<F>(sum_to_t);
      to_end[static_cast<std::size_t>(t)] = static_cast<F>(sum - sum_to_t);
      F* row = mask[t];
#pragma omp simd
      for (std::int64_t j = 0; j <= t; ++j) row[j] = static_cast<F>(sum_to_t - sums[static_cast<std::size_t>(j)]);
      simd_.exponentials(t + 1, row);
    }
    simd_.exponentials(count, from_start.data());
    simd_.exponentials(count, to_end.data());
    total = from_start[static_cast<std::size_t>(count - 1)];
  }

  const Recurrence& r_;
  std::int64_t capacity_, ahead_;
  const SimdKernels<F>& simd_ = simd_kernels<F>();
};

}  // namespace glade::cpu
