#pragma once
// One chunk of the gated recurrence on the CPU: its rows, its decays, and products with matrices that are zero above the
// diagonal.
#include <array>

#include <glade/core/math.h>
#include <glade/ops/linear_attention/staging_cpu.h>

namespace glade::cpu {

constexpr std::int64_t kChunk = 64;

/// x *= y and x *= y for one number.
template <class F>
void multiply_row(F* x, const F* y, std::int64_t size) {
#pragma omp simd
  for (std::int64_t i = 0; i < size; ++i) x[i] *= y[i];
}
template <class F>
void scale_row(F* x, F y, std::int64_t size) {
#pragma omp simd
  for (std::int64_t i = 0; i < size; ++i) x[i] *= y;
}

/// With b_t the sum of the log decays of the chunk's tokens up to t, its form is
///     o_t = sum_{j <= t} (q_t . e^{b_t - b_j} k_j) v_j + (e^{b_t} q_t) S          S the state before the chunk
///     S'  = e^{b_C} S + sum_j (e^{b_C - b_j} k_j) v_j^T
/// Decays that a head's channels share (`per_channel` false) are taken as they stand, in `mask`, `from_start` and `to_end`:
/// no exponent is positive. Those of single channels are split: q_t and k_t are multiplied by e^{b_t - r} and e^{r - b_t},
/// with r halfway between the first and the last b, and S is multiplied by `lead` = e^r before and `trail` = e^{b_C - r}
/// after. That is accurate while b stays near r, so a chunk ends before the token at which the decay since its first one
/// exceeds kSpan in a channel. What the first token itself forgets is in `lead` alone and may be anything, -inf too; so
/// gates of any strength are right, in chunks of one token at worst.
template <class T>
struct Chunk {
  using F = compute_t<T>;
  static constexpr F kSpan = 16;

  bool per_channel;
  std::int64_t count = 0;
  Rows<F> q, k, v, grad_o;                     ///< q scaled; q and k with their decays where per_channel
  Rows<F> decay, lead, trail;                  ///< per_channel: e^{b_t - r}, and the factors of the state
  Rows<F> mask;                                ///< e^{b_t - b_j} at (t, j), 1 where per_channel; 0 for j > t
  std::array<F, kChunk> from_start{}, to_end;  ///< e^{b_t} and e^{b_C - b_t}; 1 where per_channel
  F total = 1;                                 ///< e^{b_C}

  explicit Chunk(const Recurrence& recurrence)
      : per_channel(recurrence.gk.defined()),
        q(kChunk, recurrence.K),
        k(kChunk, recurrence.K),
        v(kChunk, recurrence.V),
        grad_o(kChunk, recurrence.V),
        decay(kChunk, recurrence.K),
        lead(1, recurrence.K),
        trail(1, recurrence.K),
        mask(kChunk, kChunk),
        r_(recurrence) {
    for (std::int64_t t = 0; t < kChunk; ++t) std::fill_n(mask[t], t + 1, F{1});
    from_start.fill(1);
    to_end.fill(1);
  }

  /// Stages a chunk of head h that begins at `position`, of at most `limit` tokens: key and value alone, or all rows.
  void load(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t position, std::int64_t limit, Columns columns,
            bool all, const Tensor& grad_output = {}) {
    count = std::min(kChunk, limit);
    if (per_channel) load_channel_decays(sequence, n, h, position);
    else if (r_.g.defined() || r_.g_gamma.defined()) load_head_decays(sequence, n, h, position);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t token = sequence.token(position + t), row = token * r_.heads + h,
                         kv_row = token * r_.kv_heads + h / r_.group();
      load_row<T>(r_.k, kv_row * r_.K, r_.K, k[t]);
      load_row<T>(r_.v, kv_row * r_.V + columns.begin, columns.size(), v[t]);
      if (all) load_row<T>(r_.q, row * r_.K, r_.K, q[t], static_cast<F>(r_.scale));
      if (grad_output.defined()) load_row<T>(grad_output, row * r_.V + columns.begin, columns.size(), grad_o[t]);
      if (!per_channel) continue;
      if (all) multiply_row(q[t], decay[t], r_.K);
      divide_row(k[t], decay[t]);
    }
  }

  /// x [count, .] times a matrix whose transpose is y, where it is below or on the diagonal; times `mask`.
  void scores(const Rows<F>& x, const Rows<F>& y_transposed, std::int64_t inner, Rows<F>& out) const {
    for (std::int64_t t = 0; t < count; t += kStrip) {
      const std::int64_t rows = std::min(kStrip, count - t), columns = padded(t + rows, kLine<F>);
      simd_kernels<F>().multiply(rows, columns, inner, x[t], x.row(), 1, y_transposed[0], y_transposed.row(), out[t], out.row(),
                                 false);
      for (std::int64_t i = t; i < t + rows; ++i) multiply_row(out[i], mask[i], columns);
    }
  }
  /// out += lower x and out += lower^T x for a lower-triangular matrix.
  void multiply_lower(const Rows<F>& lower, const Rows<F>& x, std::int64_t columns, Rows<F>& out) const {
    for (std::int64_t t = 0; t < count; t += kStrip) {
      const std::int64_t rows = std::min(kStrip, count - t);
      simd_kernels<F>().multiply(rows, columns, t + rows, lower[t], lower.row(), 1, x[0], x.row(), out[t], out.row(), true);
    }
  }
  void multiply_lower_transposed(const Rows<F>& lower, const Rows<F>& x, std::int64_t columns, Rows<F>& out, bool add) const {
    for (std::int64_t t = 0; t < count; t += kStrip)
      simd_kernels<F>().multiply(std::min(kStrip, count - t), columns, count - t, lower[t] + t, 1, lower.row(), x[t], x.row(),
                                 out[t], out.row(), add);
  }

 private:
  static constexpr std::int64_t kStrip = 16;  // rows that are multiplied as one, as wide as the last of them

  void load_channel_decays(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t position) {
    const auto load_gate = [&](std::int64_t t, F* out) {
      const std::int64_t token = sequence.token(position + t);
      load_gates<T>(r_.gk, (token * r_.heads + h) * r_.K, r_.K, head_gate<T, F>(r_, n, h, token), out);
    };
    load_gate(0, lead[0]);
    std::fill_n(decay[0], r_.K, F{0});
    for (std::int64_t t = 1; t < count; ++t) {  // sums since the first token
      load_gate(t, decay[t]);
      const F* before = decay[t - 1];
      F *sums = decay[t], largest = 0;
#pragma omp simd reduction(max : largest)
      for (std::int64_t i = 0; i < r_.K; ++i) {
        sums[i] += before[i];
        const F size = sums[i] < 0 ? -sums[i] : sums[i];
        largest = size > largest ? size : largest;
      }
      if (largest > kSpan) count = t;
    }
    const F* last = decay[count - 1];
    for (std::int64_t i = 0; i < r_.K; ++i) {
      trail[0][i] = last[i] / 2;
      lead[0][i] += last[i] / 2;
    }
    for (std::int64_t t = 0; t < count; ++t) {
#pragma omp simd
      for (std::int64_t i = 0; i < r_.K; ++i) decay[t][i] -= trail[0][i];
    }
    const auto exponentials = simd_kernels<F>().exponentials;
    for (std::int64_t t = 0; t < count; ++t) exponentials(r_.K, decay[t]);
    exponentials(r_.K, lead[0]);
    exponentials(r_.K, trail[0]);
  }

  void load_head_decays(const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t position) {
    constexpr double kForgotten = -1000;  // e^x is 0 from here on, in float64 too; sums of it stay finite
    std::array<double, kChunk> sums;
    double sum = 0;
    for (std::int64_t t = 0; t < count; ++t) {
      const double gate = static_cast<double>(head_gate<T, F>(r_, n, h, sequence.token(position + t)));
      sum += gate < kForgotten ? kForgotten : gate;
      at(sums, t) = sum;
    }
    const auto exponentials = simd_kernels<F>().exponentials;
    for (std::int64_t t = 0; t < count; ++t) {
      at(from_start, t) = static_cast<F>(at(sums, t));
      at(to_end, t) = static_cast<F>(sum - at(sums, t));
#pragma omp simd
      for (std::int64_t j = 0; j <= t; ++j)
        mask[t][j] = static_cast<F>(sums[static_cast<std::size_t>(t)] - sums[static_cast<std::size_t>(j)]);
      exponentials(t + 1, mask[t]);
    }
    exponentials(count, from_start.data());
    exponentials(count, to_end.data());
    total = at(from_start, count - 1);
  }

  void divide_row(F* x, const F* y) const {
#pragma omp simd
    for (std::int64_t i = 0; i < r_.K; ++i) x[i] /= y[i];
  }

  template <class X>
  static X& at(std::array<X, kChunk>& x, std::int64_t t) {
    return x[static_cast<std::size_t>(t)];
  }

  const Recurrence& r_;
};

}  // namespace glade::cpu
