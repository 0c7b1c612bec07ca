#pragma once
// How the CPU kernels of the gated recurrence read and write their tensors. They stage the rows of some tokens of one head,
// converted to the compute type.
#include <algorithm>
#include <atomic>
#include <vector>

#include <glade/core/interrupt.h>
#include <glade/core/parallel.h>
#include <glade/ops/linear_attention/cpu/simd.h>
#include <glade/ops/linear_attention/kernels.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::cpu {

/// A row-major matrix whose rows are padded with zeros to whole lines.
template <class F>
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t size) : row_(padded(size, kLine<F>)), lines_(rows * row_ / kLine<F>) {}
  std::int64_t row() const { return row_; }  ///< distance of two rows in elements
  F* operator[](std::int64_t i) { return reinterpret_cast<F*>(lines_.data()) + i * row_; }
  const F* operator[](std::int64_t i) const { return reinterpret_cast<const F*>(lines_.data()) + i * row_; }
  void clear() { std::fill(lines_.begin(), lines_.end(), Line{}); }

 private:
  struct alignas(64) Line {
    F values[kLine<F>];
  };
  std::int64_t row_;
  std::vector<Line> lines_;
};

/// Where one sequence lies, and in which order the recurrence processes its tokens.
struct Sequence {
  std::int64_t begin, length;
  bool reverse;

  Sequence(const Recurrence& r, std::int64_t n) : begin(n * r.length), length(r.length), reverse(r.reverse) {
    if (!r.cu_seqlens.defined()) return;
    const auto* boundaries = r.cu_seqlens.data<std::int64_t>();
    begin = boundaries[n];
    length = boundaries[n + 1] - begin;
  }
  std::int64_t token(std::int64_t position) const { return begin + (reverse ? length - 1 - position : position); }
};

/// The value columns [begin, end) of a head that one task processes.
struct Columns {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// The split of the work into tasks: one per head, or several if there are fewer heads than threads. Each task of a head then has
/// a block of the head's value columns, which are independent of each other.
template <class F>
struct ColumnSplit {
  std::int64_t heads, V, lines, blocks;  ///< blocks per head, of whole lines

  ColumnSplit(std::int64_t head_count, std::int64_t values)
      : heads(head_count),
        V(values),
        lines(padded(V, kLine<F>) / kLine<F>),
        blocks(std::clamp<std::int64_t>((omp_get_max_threads() + heads - 1) / std::max<std::int64_t>(heads, 1), 1, lines)) {}
  std::int64_t tasks() const { return heads * blocks; }
  Columns columns(std::int64_t block) const {
    return {lines * block / blocks * kLine<F>, std::min(V, lines * (block + 1) / blocks * kLine<F>)};
  }
};

/// Where the rows of a head lie in a tensor [tokens, heads, size], from a given position of a sequence on.
struct HeadRows {
  std::int64_t first, step;  ///< offset of the first row, and distance of two rows, in elements

  HeadRows(const Sequence& sequence, std::int64_t position, std::int64_t heads, std::int64_t h, std::int64_t size,
           std::int64_t column = 0)
      : first((sequence.token(position) * heads + h) * size + column), step((sequence.reverse ? -1 : 1) * heads * size) {}
};

/// Calls `use` with a pointer to the elements of x, which have type T or F.
template <class T, class F, class Use>
void with_numbers(const Tensor& x, const Use& use) {
  if (x.dtype() == dtype_of<T>()) use(x.data<T>());
  else use(x.data<F>());
}

/// Sets `count` rows of `out` to factor * x, padded with zeros to whole lines. Prefetches the rows that lie `ahead` rows from
/// these: the rows of a head are not contiguous, so the hardware prefetcher does not predict them.
template <class T, class F>
void load_rows(const Tensor& x, HeadRows rows, std::int64_t count, std::int64_t size, Rows<F>& out, std::int64_t ahead,
               F factor = 1) {
  with_numbers<T, F>(x, [&](const auto* in) {
    for (std::int64_t t = 0; t < count; ++t) {
      const auto* from = in + rows.first + t * rows.step;
      F* to = out[t];
      for (std::int64_t i = 0; i < size; i += 64 / static_cast<std::int64_t>(sizeof(*from)))
        __builtin_prefetch(from + ahead * rows.step + i, 0, 2);
#pragma omp simd
      for (std::int64_t i = 0; i < size; ++i) to[i] = factor * static_cast<F>(from[i]);
      std::fill(to + size, to + padded(size, kLine<F>), F{0});
    }
  });
}

/// Tensors of at least this many bytes are written with non-temporal stores, because the caches would hardly hold them together
/// with the inputs. Such stores neither read a line before they overwrite it nor evict other data.
constexpr std::int64_t kStreamed = 4 << 20;

/// Writes `count` rows of factor * x to `out`, unless `out` is undefined. The thread must call publish_rows() after its last
/// call.
template <class T, class F>
void store_rows(const Rows<F>& x, std::int64_t count, std::int64_t size, const Tensor& out, HeadRows rows, F factor = 1) {
  if (!out.defined()) return;
  with_numbers<T, F>(out, [&]<class To>(To* numbers) {
    if constexpr (std::is_same_v<To, F>) {
      To* const first = numbers + rows.first;
      const bool lines = reinterpret_cast<std::uintptr_t>(first) % 64 == 0 && rows.step % kLine<F> == 0 && size % kLine<F> == 0;
      if (lines && out.numel() * static_cast<std::int64_t>(sizeof(To)) >= kStreamed)
        return simd_kernels<F>().stream_rows(count, size, factor, x[0], x.row(), first, rows.step);
    }
    for (std::int64_t t = 0; t < count; ++t) {
      To* to = numbers + rows.first + t * rows.step;
      const F* from = x[t];
#pragma omp simd
      for (std::int64_t i = 0; i < size; ++i) to[i] = To(factor * from[i]);
    }
  });
}

/// Makes the non-temporal stores of this thread visible to other threads before anything that signals the end of its work.
inline void publish_rows() { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// Sets out[t] to g + g_gamma of head h of sequence n, the log decay that all channels of the head share.
template <class T, class F>
void load_head_gates(const Recurrence& r, const Sequence& sequence, std::int64_t n, std::int64_t h, std::int64_t position,
                     std::int64_t count, F* out) {
  std::fill_n(out, count, r.g_gamma.defined() ? r.g_gamma.data<F>()[n * r.gamma_step() + h] : F{0});
  if (!r.g.defined()) return;
  const HeadRows rows(sequence, position, r.heads, h, 1);
  with_numbers<T, F>(r.g, [&](const auto* g) {
    for (std::int64_t t = 0; t < count; ++t) out[t] += static_cast<F>(g[rows.first + t * rows.step]);
  });
}

/// Loads the log decays of all key channels for `count` tokens: gk plus `shared`, which load_head_gates() loaded.
template <class T, class F>
void load_channel_gates(const Recurrence& r, const Sequence& sequence, std::int64_t h, std::int64_t position, std::int64_t count,
                        const F* shared, Rows<F>& out, std::int64_t ahead) {
  if (r.gk.defined()) load_rows<T>(r.gk, HeadRows(sequence, position, r.heads, h, r.K), count, r.K, out, ahead);
  if (r.gk.defined() && !r.g.defined() && !r.g_gamma.defined()) return;
  for (std::int64_t t = 0; t < count; ++t) {
    F* row = out[t];
    if (!r.gk.defined()) std::fill_n(row, out.row(), F{0});
#pragma omp simd
    for (std::int64_t i = 0; i < r.K; ++i) row[i] += shared[t];
  }
}

/// Writes the gradients of g: the sums of the rows of da, which holds the gradients of the channels' log decays. Returns the sum
/// of them all, for the gradient of g_gamma.
template <class T, class F>
double store_head_gradients(const Rows<F>& da, std::int64_t count, const Recurrence& r, HeadRows rows,
                            const RecurrenceGradients& grads) {
  if (!grads.g.defined() && !grads.g_gamma.defined()) return 0;
  double sum_of_all = 0;
  for (std::int64_t t = 0; t < count; ++t) {
    const F* row = da[t];
    F total = 0;
#pragma omp simd reduction(+ : total)
    for (std::int64_t i = 0; i < r.K; ++i) total += row[i];
    sum_of_all += total;
    if (!grads.g.defined()) continue;
    with_numbers<T, F>(grads.g, [&]<class To>(To* g) { g[rows.first + t * rows.step] = To(total); });
  }
  return sum_of_all;
}

/// The initial state [K, V] of head h of sequence n; null means zeros.
template <class F>
const F* initial_state(const Recurrence& r, std::int64_t n, std::int64_t h) {
  if (!r.initial_state.defined()) return nullptr;
  return r.initial_state.data<F>() + (r.initial_state.ndim() == 3 ? h : n * r.heads + h) * r.K * r.V;
}

/// Copies columns of a state [K, V] to rows [K][columns], or back (store_state).
template <class F>
void load_state(const F* in, const Recurrence& r, Columns columns, Rows<F>& rows) {
  rows.clear();
  if (in == nullptr) return;
  for (std::int64_t k = 0; k < r.K; ++k) std::copy_n(in + k * r.V + columns.begin, columns.size(), rows[k]);
}
template <class F>
void store_state(const Rows<F>& rows, const Recurrence& r, Columns columns, F* out) {
  for (std::int64_t k = 0; k < r.K; ++k) std::copy_n(rows[k], columns.size(), out + k * r.V + columns.begin);
}

/// Copies columns of a state [K, V] to rows [columns][K], from row `first` on, or back (store_transposed_state).
template <class F>
void load_transposed_state(const F* in, const Recurrence& r, Columns columns, Rows<F>& rows, std::int64_t first) {
  for (std::int64_t v = 0; v < columns.size(); ++v)
    for (std::int64_t k = 0; k < r.K; ++k) rows[first + v][k] = in == nullptr ? F{0} : in[k * r.V + columns.begin + v];
}
template <class F>
void store_transposed_state(const Rows<F>& rows, std::int64_t first, const Recurrence& r, Columns columns, F* out) {
  for (std::int64_t k = 0; k < r.K; ++k)
    for (std::int64_t v = 0; v < columns.size(); ++v) out[k * r.V + columns.begin + v] = rows[first + v][k];
}

/// Runs make_task(interruption).run(n, kv head, columns, gradients) for each sequence, key head and block of value columns. If a
/// head has several blocks, the gradients that sum over values are computed for each block and then added.
template <class F, class MakeTask>
void for_each_task(const Recurrence& r, const RecurrenceGradients& grads, const MakeTask& make_task) {
  const ColumnSplit<F> split(r.sequences * r.kv_heads, r.V);
  static constexpr Tensor RecurrenceGradients::*kSums[] = {&RecurrenceGradients::q, &RecurrenceGradients::k,
                                                           &RecurrenceGradients::g, &RecurrenceGradients::gk,
                                                           &RecurrenceGradients::g_gamma};
  std::vector<RecurrenceGradients> block_grads(static_cast<std::size_t>(split.blocks), grads);
  RecurrenceGradients all = grads;
  if (split.blocks > 1)
    for (const auto which : kSums) {
      if (!(grads.*which).defined()) continue;
      Shape shape = (grads.*which).shape();
      shape.insert(0, split.blocks);
      all.*which = empty(shape, {dtype_of<F>(), kCPU});
      for (std::int64_t i = 0; i < split.blocks; ++i) block_grads[static_cast<std::size_t>(i)].*which = select(all.*which, 0, i);
    }
  Interruption interruption;
  parallel_for(split.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
    auto task = make_task(interruption);
    for (std::int64_t i = first; i < last && !interruption.requested(); ++i) {
      const std::int64_t head = i / split.blocks, block = i % split.blocks;
      task.run(head / r.kv_heads, head % r.kv_heads, split.columns(block), block_grads[static_cast<std::size_t>(block)]);
    }
    publish_rows();
  });
  interruption.rethrow();
  if (split.blocks > 1)
    for (const auto which : kSums)
      if ((grads.*which).defined()) copy_data(grads.*which, sum(all.*which, {0}));
}

}  // namespace glade::cpu
