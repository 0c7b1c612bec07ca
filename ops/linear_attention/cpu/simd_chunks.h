#pragma once
// The element-wise kernels of the chunk form; see cpu/simd.h for what each one does. Matrices are row-major, with whole lines of
// columns.
#include <glade/ops/linear_attention/cpu/simd_products.h>

namespace glade::cpu {

namespace {

/// The largest element of a vector.
template <class F, std::size_t... I>
GLADE_INLINE F largest(const Vector<F>& x, std::index_sequence<I...>) {
  F result = x[0];
  ((result = x[I] > result ? x[I] : result), ...);
  return result;
}

/// The first row with an element outside [-range, range] or NaN, or `rows` if there is none.
template <class F>
std::int64_t first_beyond(std::int64_t rows, std::int64_t width, F range, const F* x) {
  for (std::int64_t t = 0; t < rows; ++t)
    for (std::int64_t i = t * width; i < (t + 1) * width; ++i)
      if (!(x[i] >= -range && x[i] <= range)) return t;
  return rows;
}

template <class F>
std::int64_t channel_decays(std::int64_t count, std::int64_t width, F range, F* decay, F* lead, F* trail) {
  Vector<F> sizes = {}, zeros = {};  // the latter not 0 where a sum is not finite
  for (std::int64_t i = 0; i < width; i += kLanes<F>) {
    Vector<F> sum = {};
    store<F>(lead + i, load(decay + i));
    store<F>(decay + i, sum);
    for (F* at = decay + i + width; at < decay + count * width; at += width) {
      sum += load(at);
      const Vector<F> size = sum < 0 ? -sum : sum;
      sizes = size > sizes ? size : sizes;
      store<F>(at, sum);
    }
    zeros += sum * 0;
  }
  if (largest<F>(sizes, LaneIndices<F>()) > range || sum<F>(zeros) != 0) count = first_beyond(count, width, range, decay);
  for (std::int64_t i = 0; i < width; ++i) {
    trail[i] = decay[(count - 1) * width + i] / 2;
    lead[i] = math::exp(lead[i] + trail[i]);
  }
  for (std::int64_t t = 0; t < count; ++t) {
    F* sums = decay + t * width;
#pragma GCC ivdep
    for (std::int64_t i = 0; i < width; ++i) sums[i] = math::exp(sums[i] - trail[i]);
  }
  exponentials(width, trail);
  return count;
}

template <class F>
void scale_rows(std::int64_t rows, std::int64_t columns, const F* factors, F* x, std::int64_t x_row) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; j += kLanes<F>) store<F>(x + i * x_row + j, load(x + i * x_row + j) * factors[i]);
}

template <class F>
void scale_columns(std::int64_t rows, std::int64_t columns, const F* factors, F* x, std::int64_t x_row) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; j += kLanes<F>)
      store<F>(x + i * x_row + j, load(x + i * x_row + j) * load(factors + j));
}

template <class F>
void multiply_elements(std::int64_t size, const F* factors, F* x) {
  for (std::int64_t i = 0; i < size; i += kLanes<F>) store<F>(x + i, load(x + i) * load(factors + i));
}

template <class F>
void divide_elements(std::int64_t size, const F* divisors, F* x) {
  for (std::int64_t i = 0; i < size; i += kLanes<F>) store<F>(x + i, load(x + i) / load(divisors + i));
}

template <class F>
void sum_products(std::int64_t rows, std::int64_t columns, const F* x, const F* y, F* sums) {
  for (std::int64_t j = 0; j < columns; j += kLanes<F>) {
    Vector<F> sum = {};
    for (std::int64_t i = j; i < rows * columns; i += columns) sum += load(x + i) * load(y + i);
    store<F>(sums + j, sum);
  }
}

template <class F>
void gate_gradients(std::int64_t count, std::int64_t width, const F* q, const F* dq, const F* k, const F* dk,
                    const F* dk_of_state, const F* passing, F* da) {
  for (std::int64_t j = 0; j < width; j += kLanes<F>) {
    Vector<F> sum = load(passing + j);
    for (std::int64_t i = j; i < count * width; i += width) {
      store<F>(da + i, sum);
      sum += load(k + i) * load(dk_of_state + i);
    }
    sum = Vector<F>{};
    for (std::int64_t i = j + (count - 1) * width; i >= 0; i -= width) {
      sum += load(q + i) * load(dq + i) - load(k + i) * load(dk + i);
      store<F>(da + i, load(da + i) + sum);
    }
  }
}

template <class F>
void complete_gradients(std::int64_t count, std::int64_t width, const F* q, const F* k, const F* diagonal, const F* decay,
                        const F* dk_of_state, F* dq, const F* dk, F* dk_sum) {
  for (std::int64_t t = 0; t < count; ++t)
    for (std::int64_t i = t * width; i < (t + 1) * width; i += kLanes<F>) {
      Vector<F> query = load(dq + i) + diagonal[t] * load(k + i);
      Vector<F> key = load(dk + i) + load(dk_of_state + i) + diagonal[t] * load(q + i);
      if (decay != nullptr) {
        query *= load(decay + i);
        key /= load(decay + i);
      }
      store<F>(dq + i, query);
      store<F>(dk_sum + i, load(dk_sum + i) + key);
    }
}

}  // namespace

}  // namespace glade::cpu
