// Sorting on the CPU. Every order is the stable one.
#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include <glade/core/parallel.h>
#include <glade/ops/sort/sort_kernels.h>

namespace glade::cpu {

namespace {

/// A key, and where it was. With the position as the lower half no item equals another.
template <class Key>
using Item = std::pair<Key, std::int64_t>;

/// Sorts n items by digits of 8 bits, the lowest first; what all keys have in common is passed over. The result is in `items` or,
/// as the return value says, in `other`.
template <class Key>
const Item<Key>* radix_sort(Item<Key>* items, Item<Key>* other, std::int64_t n) {
  constexpr int digits = sizeof(Key);
  std::array<std::array<std::uint32_t, 256>, digits> counts{};
  for (std::int64_t i = 0; i < n; ++i)
    for (int d = 0; d < digits; ++d) ++counts[static_cast<std::size_t>(d)][items[i].first >> (8 * d) & 255];
  for (int d = 0; d < digits; ++d) {
    auto& count = counts[static_cast<std::size_t>(d)];
    if (count[items[0].first >> (8 * d) & 255] == static_cast<std::uint64_t>(n)) continue;
    std::uint32_t next = 0;
    for (std::uint32_t& c : count) next += std::exchange(c, next);
    for (std::int64_t i = 0; i < n; ++i) other[count[items[i].first >> (8 * d) & 255]++] = items[i];
    std::swap(items, other);
  }
  return items;
}

constexpr std::int64_t kRadix = 128;  // fewer elements are sorted by comparisons

template <class Key>
const Item<Key>* sort_items(Item<Key>* items, Item<Key>* other, std::int64_t n) {
  if (n >= kRadix && n <= INT32_MAX) return radix_sort(items, other, n);
  std::sort(items, items + n);
  return items;
}

/// Sorts one long row in parallel: into buckets by the distance from the least key, which are then sorted one by one. The result
/// goes to out(i, item).
template <class Key, class Out>
void sort_by_buckets(std::vector<Item<Key>>& items, std::vector<Item<Key>>& other, const Out& out) {
  constexpr std::int64_t kBuckets = 4096, kPieces = 16;
  const auto n = static_cast<std::int64_t>(items.size()), piece = (n + kPieces - 1) / kPieces;
  const auto [least, most] = std::ranges::minmax(items, {}, &Item<Key>::first);
  const Key base = least.first;
  const int shift = std::max(0, static_cast<int>(std::bit_width(Key(most.first - base))) - 12);
  const auto bucket_of = [&](const Item<Key>& item) { return static_cast<std::size_t>((item.first - base) >> shift); };
  std::vector<std::array<std::int64_t, kBuckets>> next(kPieces);  // of a piece and a bucket: a number of items, then their place
  const auto for_each_piece = [&](const auto& f) {
    parallel_for(kPieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p)
        for (std::int64_t i = p * piece; i < std::min(n, (p + 1) * piece); ++i)
          f(next[static_cast<std::size_t>(p)], items[static_cast<std::size_t>(i)]);
    });
  };
  for_each_piece([&](auto& count, const Item<Key>& item) { ++count[bucket_of(item)]; });
  std::vector<std::int64_t> first{0};  // places of the buckets
  for (std::size_t b = 0; b < kBuckets; ++b) {
    std::int64_t place = first.back();
    for (auto& count : next) place += std::exchange(count[b], place);
    first.push_back(place);
  }
  for_each_piece([&](auto& place, const Item<Key>& item) { other[static_cast<std::size_t>(place[bucket_of(item)]++)] = item; });
  parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {  // those buckets that begin in the range
    for (auto b = std::ranges::lower_bound(first, begin); b + 1 != first.end() && *b < end; ++b) {
      if (b[0] == b[1]) continue;
      const Item<Key>* sorted = sort_items(other.data() + *b, items.data() + *b, b[1] - *b);
      for (std::int64_t i = *b; i < b[1]; ++i) out(i, *sorted++);
    }
  });
}

/// The first k of n keys in their order, by a heap of the best so far.
template <class Key, class KeyAt>
void select_first(std::int64_t k, std::int64_t n, const KeyAt& key_at, std::vector<Item<Key>>& best) {
  best.clear();
  for (std::int64_t i = 0; i < n; ++i) {
    const Key key = key_at(i);
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
  visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
    using Key = sort_key_t<T>;
    const stored_t<T>* const data = stored(x.data<T>());
    auto* const out = indices.data<std::int64_t>();
    const auto sort_row = [&](std::int64_t row, std::vector<Item<Key>>& items, std::vector<Item<Key>>& other) {
      const auto key_at = [x_row = data + row * n, descending](std::int64_t i) { return sort_key<T>(x_row[i], descending); };
      const auto put = [to = out + row * k, k](std::int64_t i, const Item<Key>& item) {
        if (i < k) to[i] = item.second;
      };
      if (16 * k <= n) {
        select_first(k, n, key_at, items);
        for (std::int64_t i = 0; i < k; ++i) put(i, items[static_cast<std::size_t>(i)]);
        return;
      }
      items.resize(static_cast<std::size_t>(n));
      other.resize(static_cast<std::size_t>(n));
      parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) items[static_cast<std::size_t>(i)] = {key_at(i), i};
      });
      if (rows == 1 && n >= kGrain) return sort_by_buckets<Key>(items, other, put);
      const Item<Key>* const sorted = sort_items(items.data(), other.data(), n);
      for (std::int64_t i = 0; i < k; ++i) put(i, sorted[i]);
    };
    parallel_for(rows, std::max<std::int64_t>(1, kGrain / (8 * n)), [&](std::int64_t begin, std::int64_t end) {
      std::vector<Item<Key>> items, other;
      for (std::int64_t row = begin; row < end; ++row) sort_row(row, items, other);
    });
  });
}

}  // namespace glade::cpu
