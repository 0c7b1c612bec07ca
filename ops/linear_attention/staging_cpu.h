#pragma once
// How the CPU kernels of the gated recurrence read and write their tensors: the rows of some tokens of one head, converted to
// the compute type.
#include <algorithm>
#include <array>
#include <vector>

#include <glade/core/parallel.h>
#include <glade/ops/linear_attention/linear_attention_kernels.h>
#include <glade/ops/linear_attention/simd_cpu.h>
#include <glade/ops/reduce/reduce.h>
#include <glade/ops/shape/shape.h>

namespace glade::cpu {

/// Rows of numbers, each padded with zeros to whole lines.
template <class F>
class Rows {
 public:
  Rows(std::int64_t rows, std::int64_t size) : row_(padded(size, kLine<F>)), lines_(rows * row_ / kLine<F>) {}
  std::int64_t row() const { return row_; }  ///< numbers from row to row
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

/// One sequence: where it lies, in the order in which its tokens are taken.
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

/// The values [begin, end) of a head, which a task takes alone.
struct Columns {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

/// Tasks: every head, its values in parts where there are fewer heads than threads.
template <class F>
struct Parts {
  std::int64_t heads, V, lines, parts;

  Parts(std::int64_t head_count, std::int64_t values)
      : heads(head_count),
        V(values),
        lines(padded(V, kLine<F>) / kLine<F>),
        parts(std::clamp<std::int64_t>((omp_get_max_threads() + heads - 1) / std::max<std::int64_t>(heads, 1), 1, lines)) {}
  std::int64_t tasks() const { return heads * parts; }
  Columns columns(std::int64_t part) const {
    return {lines * part / parts * kLine<F>, std::min(V, lines * (part + 1) / parts * kLine<F>)};
  }
};

/// Calls use with x's numbers from `offset` on, of type T or F.
template <class T, class F, class Use>
void with_numbers(const Tensor& x, std::int64_t offset, const Use& use) {
  if (x.dtype() == dtype_of<T>()) use(x.data<T>() + offset);
  else use(x.data<F>() + offset);
}

/// out = factor * x from element `offset` on, with zeros up to a whole line.
template <class T, class F>
void load_row(const Tensor& x, std::int64_t offset, std::int64_t size, F* out, F factor = 1) {
  const T* in = x.data<T>() + offset;
#pragma omp simd
  for (std::int64_t i = 0; i < size; ++i) out[i] = factor * static_cast<F>(in[i]);
  std::fill(out + size, out + padded(size, kLine<F>), F{0});
}

/// Writes factor * x to `out` from element `offset` on; nothing where it is undefined.
template <class T, class F>
void store_row(const F* x, std::int64_t size, const Tensor& out, std::int64_t offset, F factor = 1) {
  if (!out.defined()) return;
  with_numbers<T, F>(out, offset, [&]<class To>(To* to) {
#pragma omp simd
    for (std::int64_t i = 0; i < size; ++i) to[i] = To(factor * x[i]);
  });
}

/// The log decay that all channels of head h share at a token: g + g_gamma.
template <class T, class F>
F head_gate(const Recurrence& r, std::int64_t n, std::int64_t h, std::int64_t token) {
  F gate = r.g_gamma.defined() ? r.g_gamma.data<F>()[n * r.heads + h] : F{0};
  if (r.g.defined()) with_numbers<T, F>(r.g, token * r.heads + h, [&](const auto* g) { gate += static_cast<F>(*g); });
  return gate;
}

/// out = shared + x, a row of log decays; x undefined is 0.
template <class T, class F>
void load_gates(const Tensor& x, std::int64_t offset, std::int64_t size, F shared, F* out) {
  if (!x.defined()) return static_cast<void>(std::fill_n(out, size, shared));
  with_numbers<T, F>(x, offset, [&](const auto* in) {
#pragma omp simd
    for (std::int64_t i = 0; i < size; ++i) out[i] = shared + static_cast<F>(in[i]);
  });
}

/// The state before the first token of head h of sequence n, [K, V]; null for zeros.
template <class F>
const F* initial_state(const Recurrence& r, std::int64_t n, std::int64_t h) {
  if (!r.initial_state.defined()) return nullptr;
  return r.initial_state.data<F>() + (r.initial_state.ndim() == 3 ? h : n * r.heads + h) * r.K * r.V;
}

/// Columns of a state [K, V] to and from rows [K][columns].
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

/// The same to and from rows [columns][K], those from `first` on.
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

/// Runs make_task().run(n, kv head, columns, gradients) for every sequence and key head. Where values are taken in parts,
/// the gradients that are sums over them are computed for each part and then added up.
template <class F, class MakeTask>
void for_each_part(const Recurrence& r, const RecurrenceGradients& grads, const MakeTask& make_task) {
  const Parts<F> parts(r.sequences * r.kv_heads, r.V);
  static constexpr Tensor RecurrenceGradients::*kSums[] = {&RecurrenceGradients::q, &RecurrenceGradients::k,
                                                           &RecurrenceGradients::g, &RecurrenceGradients::gk,
                                                           &RecurrenceGradients::g_gamma};
  std::vector<RecurrenceGradients> of_part(static_cast<std::size_t>(parts.parts), grads);
  RecurrenceGradients all = grads;
  if (parts.parts > 1)
    for (const auto which : kSums) {
      if (!(grads.*which).defined()) continue;
      Shape shape = (grads.*which).shape();
      shape.insert(0, parts.parts);
      all.*which = empty(shape, {dtype_of<F>(), kCPU});
      for (std::int64_t i = 0; i < parts.parts; ++i) of_part[static_cast<std::size_t>(i)].*which = select(all.*which, 0, i);
    }
  parallel_for(parts.tasks(), 1, [&](std::int64_t first, std::int64_t last) {
    auto task = make_task();
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t head = i / parts.parts, part = i % parts.parts;
      task.run(head / r.kv_heads, head % r.kv_heads, parts.columns(part), of_part[static_cast<std::size_t>(part)]);
    }
  });
  if (parts.parts > 1)
    for (const auto which : kSums)
      if ((grads.*which).defined()) copy_data(grads.*which, sum(all.*which, {0}));
}

}  // namespace glade::cpu
