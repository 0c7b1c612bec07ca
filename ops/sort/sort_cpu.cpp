// Sorting on the CPU. Every order is the stable one.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <glade/core/parallel.h>
#include <glade/ops/sort/sort_kernels.h>

namespace glade::cpu {

namespace {

/// A key, and where it was. With the position as the lower half no item equals another.
template <class Key>
using Item = std::pair<Key, std::int64_t>;

/// Sorts by digits of 8 bits, the lowest first; what all keys have in common is passed over. Leaves the result in `items`.
template <class Key>
void radix_sort(std::vector<Item<Key>>& items, std::vector<Item<Key>>& other) {
  constexpr int digits = sizeof(Key);
  std::array<std::array<std::uint32_t, 256>, digits> counts{};
  for (const auto& [key, position] : items)
    for (int d = 0; d < digits; ++d) ++counts[static_cast<std::size_t>(d)][key >> (8 * d) & 255];
  other.resize(items.size());
  for (int d = 0; d < digits; ++d) {
    auto& count = counts[static_cast<std::size_t>(d)];
    if (count[items[0].first >> (8 * d) & 255] == items.size()) continue;
    std::uint32_t next = 0;
    for (std::uint32_t& c : count) next += std::exchange(c, next);
    for (const auto& item : items) other[count[item.first >> (8 * d) & 255]++] = item;
    std::swap(items, other);
  }
}

/// The first k of n keys in their order, by a heap of the best so far.
template <class Key>
void select_first(std::int64_t k, const std::vector<Key>& keys, std::vector<Item<Key>>& best) {
  best.clear();
  const auto n = static_cast<std::int64_t>(keys.size());
  for (std::int64_t i = 0; i < n; ++i) {
    const Key key = keys[static_cast<std::size_t>(i)];
    if (i >= k) {
      if (key >= best.front().first) continue;
      std::pop_heap(best.begin(), best.end());
      best.pop_back();
    }
    best.emplace_back(key, i);
    std::push_heap(best.begin(), best.end());
  }
  std::sort_heap(best.begin(), best.end());
}

}  // namespace

void argsort(const Tensor& indices, const Tensor& x, bool descending) {
  const std::int64_t rows = x.size(0), n = x.size(1), k = indices.size(1);
  if (k == 0) return;
  constexpr std::int64_t kRadix = 128;  // fewer elements are sorted by comparisons
  visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Key = sort_key_t<T>;
    const T* const data = x.data<T>();
    auto* const out = indices.data<std::int64_t>();
    parallel_for(rows, std::max<std::int64_t>(1, kGrain / (8 * n)), [&](std::int64_t begin, std::int64_t end) {
      std::vector<Item<Key>> items, other;
      std::vector<Key> keys(static_cast<std::size_t>(n));
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t i = 0; i < n; ++i) keys[static_cast<std::size_t>(i)] = sort_key(data[row * n + i], descending);
        if (16 * k <= n) {
          select_first(k, keys, items);
        } else {
          items.resize(static_cast<std::size_t>(n));
          for (std::int64_t i = 0; i < n; ++i) items[static_cast<std::size_t>(i)] = {keys[static_cast<std::size_t>(i)], i};
          if (n < kRadix || n > INT32_MAX) std::sort(items.begin(), items.end());
          else radix_sort(items, other);
        }
        for (std::int64_t i = 0; i < k; ++i) out[row * k + i] = items[static_cast<std::size_t>(i)].second;
      }
    });
  });
}

}  // namespace glade::cpu
