// Sorting on the CPU. Every order is the stable one.
#include <algorithm>
#include <array>
#include <bit>
#include <ranges>
#include <utility>
#include <vector>

#include <glade/core/parallel.h>
#include <glade/ops/index/index_kernels.h>
#include <glade/ops/sort/sort_kernels.h>

namespace glade::cpu {

namespace {

/// An element to be sorted: the highest bits of its key's distance from the row's least key, and below them its position.
using Word = std::uint64_t;

/// The order of a row's n elements, whose keys are key_at(i).
template <class KeyAt>
struct Order {
  using Key = decltype(std::declval<KeyAt>()(0));
  KeyAt key_at;
  Key least;
  int position_bits, distance_bits, dropped_bits;

  Order(const KeyAt& keys, std::int64_t n, Key lowest, Key highest) : key_at(keys), least(lowest) {
    position_bits = std::bit_width(static_cast<std::uint64_t>(n - 1));
    distance_bits = std::bit_width(Key(highest - lowest));
    dropped_bits = std::max(0, distance_bits + position_bits - 64);
    distance_bits -= dropped_bits;
  }
  Word word(std::int64_t i) const { return Word{Key(key_at(i) - least) >> dropped_bits} << position_bits | static_cast<Word>(i); }
  std::int64_t position(Word word) const { return static_cast<std::int64_t>(word & ((Word{1} << position_bits) - 1)); }
};

constexpr std::int64_t kFew = 32;  // elements that insertion sorts fast

/// Puts a copy of the n words at `from`, which are few or near their places, in order at `to`; these may be the same.
void insertion_sort(const Word* from, std::int64_t n, Word* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    const Word word = from[i];
    std::int64_t place = i;
    for (; place > 0 && word < to[place - 1]; --place) to[place] = to[place - 1];
    to[place] = word;
  }
}

/// Copies the n words to `to` in the order of the digit above `shift`, and returns how often the most frequent value occurs.
[[gnu::noinline]] std::uint32_t sort_by_digit(const Word* words, std::int64_t n, int shift, int digit_bits, Word* to) {
  std::array<std::uint32_t, std::size_t{1} << 12> next;
  const Word mask = (Word{1} << digit_bits) - 1;
  std::fill_n(next.begin(), mask + 1, 0);
  for (std::int64_t i = 0; i < n; ++i) ++next[words[i] >> shift & mask];
  std::uint32_t place = 0, most = 0;
  for (Word d = 0; d <= mask; ++d) {
    most = std::max(most, next[d]);
    place += std::exchange(next[d], place);
  }
  for (std::int64_t i = 0; i < n; ++i) to[next[words[i] >> shift & mask]++] = words[i];
  return most;
}

/// Sorts n words, those that agree above `low` bits being in order already. By a digit of the highest bits in which they differ,
/// with about as many values as there are words, and then within the values. `other` is room for n more.
void sort_words(Word* words, Word* other, std::int64_t n, int low) {
  if (n <= kFew) return insertion_sort(words, n, words);
  if (n > INT32_MAX) return std::sort(words, words + n);
  Word difference = 0;
  for (std::int64_t i = 0; i < n; ++i) difference |= words[i] ^ words[0];
  const int bits = std::bit_width(difference >> low), enough = std::bit_width(static_cast<std::uint64_t>(n));
  if (bits == 0) return;
  const int digit_bits = std::min({bits, enough, 12}), shift = low + bits - digit_bits;
  if (sort_by_digit(words, n, shift, digit_bits, other) <= kFew) return insertion_sort(other, n, words);
  std::copy_n(other, n, words);
  if (shift == low) return;
  for (std::int64_t first = 0, i = 1; i <= n; ++i) {
    if (i < n && words[i] >> shift == words[first] >> shift) continue;
    if (i - first > 1) sort_words(words + first, other + first, i - first, low);
    first = i;
  }
}

/// Sorts by whole keys where words with equal bits above the position lack some.
template <class KeyAt>
void sort_dropped_bits(Word* words, std::int64_t n, const Order<KeyAt>& order) {
  if (order.dropped_bits == 0) return;
  const auto distance = [&order](Word word) { return word >> order.position_bits; };
  const auto key = [&order](Word word) { return std::pair(order.key_at(order.position(word)), word); };
  for (std::int64_t first = 0, i = 1; i <= n; ++i) {
    if (i < n && distance(words[i]) == distance(words[first])) continue;
    if (i - first > 1) std::ranges::sort(words + first, words + i, {}, key);
    first = i;
  }
}

/// Calls f(bucket, word) for the keys of one piece after the other, in parallel. What the loop reads is copied: elsewhere it may
/// share a cache line with what another thread writes.
template <class KeyAt, class F>
void for_each_word(const Order<KeyAt>& shared_order, std::int64_t n, std::int64_t pieces, int shift, const F& f) {
  const std::int64_t piece = (n + pieces - 1) / pieces;
  parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const auto [order, visit, digit, last] = std::tuple(shared_order, f(p), shift, std::min(n, (p + 1) * piece));
      for (std::int64_t i = p * piece; i < last; ++i) {
        const Word word = order.word(i);
        visit(word >> digit, word);
      }
    }
  });
}

/// Sorts one long row in parallel: into buckets by the highest bits of the distance, which are then sorted one by one. Puts the
/// positions of the first k into `to`. `other` is room for n words as `words` is.
template <class KeyAt>
void sort_by_buckets(Word* words, Word* other, std::int64_t n, std::int64_t k, std::int64_t pieces, const Order<KeyAt>& order,
                     std::int64_t* to) {
  const int bucket_bits = std::min(12, order.distance_bits), shift = order.position_bits + order.distance_bits - bucket_bits;
  const std::int64_t buckets = std::int64_t{1} << bucket_bits;
  std::vector<std::int64_t> next(static_cast<std::size_t>(pieces * buckets));  // of a piece and a bucket: a number, then a place
  const auto of_piece = [&](std::int64_t p) { return next.data() + p * buckets; };
  for_each_word(order, n, pieces, shift,
                [&](std::int64_t p) { return [count = of_piece(p)](Word bucket, Word) { ++count[bucket]; }; });
  std::vector<std::int64_t> first{0};  // places of the buckets
  for (std::int64_t b = 0; b < buckets; ++b) {
    std::int64_t place = first.back();
    for (std::int64_t p = 0; p < pieces; ++p) place += std::exchange(next[static_cast<std::size_t>(p * buckets + b)], place);
    first.push_back(place);
  }
  for_each_word(order, n, pieces, shift, [&](std::int64_t p) {
    return [words, place = of_piece(p)](Word bucket, Word word) { words[place[bucket]++] = word; };
  });
  parallel_for(k, 1, [&](std::int64_t begin, std::int64_t end) {  // those buckets that begin in the range
    for (auto b = std::ranges::lower_bound(first, begin); b + 1 != first.end() && *b < end; ++b) {
      const std::int64_t count = b[1] - b[0];
      sort_words(words + *b, other + *b, count, order.position_bits);
      sort_dropped_bits(words + *b, count, order);
      for (std::int64_t i = *b; i < std::min(k, b[1]); ++i) to[i] = order.position(words[i]);
    }
  });
}

/// The least and the greatest of the keys.
template <class KeyAt>
auto extremes(const KeyAt& key_at, std::int64_t begin, std::int64_t end) {
  auto least = key_at(begin), most = least;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto key = key_at(i);
    least = std::min(least, key);
    most = std::max(most, key);
  }
  return std::pair(least, most);
}

/// Puts the positions of the first k of n keys in their order into `to`; of a row that is sorted in parallel in so many pieces.
template <class KeyAt>
void sort_row(const KeyAt& key_at, std::int64_t n, std::int64_t k, std::int64_t pieces, Word* words, std::int64_t* to) {
  if (pieces > 1) {
    const std::int64_t piece = (n + pieces - 1) / pieces;
    std::vector<decltype(extremes(key_at, 0, n))> found(static_cast<std::size_t>(pieces), extremes(key_at, 0, 1));
    parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end && p * piece < n; ++p)
        found[static_cast<std::size_t>(p)] = extremes(key_at, p * piece, std::min(n, (p + 1) * piece));
    });
    const auto least = std::ranges::min(found | std::views::keys), most = std::ranges::max(found | std::views::values);
    return sort_by_buckets(words, words + n, n, k, pieces, Order<KeyAt>(key_at, n, least, most), to);
  }
  const auto [least, most] = extremes(key_at, 0, n);
  const Order<KeyAt> order(key_at, n, least, most);
  for (std::int64_t i = 0; i < n; ++i) words[i] = order.word(i);
  sort_words(words, words + n, n, order.position_bits);
  sort_dropped_bits(words, n, order);
  for (std::int64_t i = 0; i < k; ++i) to[i] = order.position(words[i]);
}

/// The same for a k that is much smaller than n: keeps what may be among the first k, and cuts that back as it grows.
template <class Key, class KeyAt>
void select_first(const KeyAt& key_at, std::int64_t n, std::int64_t k, std::vector<std::pair<Key, std::int64_t>>& best,
                  std::int64_t* to) {
  constexpr std::int64_t kBlock = 16;
  std::int64_t room = std::min(n, 2 * k + 4 * kBlock);
  room += (n - room) % kBlock;  // whole blocks are left
  best.resize(static_cast<std::size_t>(room + kBlock));
  std::int64_t count = room;
  for (std::int64_t i = 0; i < room; ++i) best[static_cast<std::size_t>(i)] = {key_at(i), i};
  const auto cut_back = [&] {
    std::nth_element(best.begin(), best.begin() + k - 1, best.begin() + count);
    count = k;
    return best[static_cast<std::size_t>(k - 1)].first;
  };
  Key last = cut_back();  // the k-th so far: what comes after it has to be less
  for (std::int64_t i = room; i < n; i += kBlock) {
    Key keys[kBlock], least = ~Key{0};
    for (std::int64_t j = 0; j < kBlock; ++j) least = std::min(least, keys[j] = key_at(i + j));
    if (least >= last) continue;
    for (std::int64_t j = 0; j < kBlock; ++j) {
      best[static_cast<std::size_t>(count)] = {keys[j], i + j};
      count += keys[j] < last;
    }
    if (count > room) last = cut_back();
  }
  std::sort(best.begin(), best.begin() + count);
  for (std::int64_t j = 0; j < k; ++j) to[j] = best[static_cast<std::size_t>(j)].second;
}

}  // namespace

void sort(const Tensor& values, const Tensor& indices, const Tensor& x, bool descending) {
  const std::int64_t rows = x.size(0), n = x.size(1), k = indices.size(1);
  if (k == 0) return;
  visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
    const stored_t<T>* const data = stored(x.data<T>());
    auto* const out = indices.data<std::int64_t>();
    parallel_for(rows, std::max<std::int64_t>(1, kGrain / (8 * n)), [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::pair<sort_key_t<T>, std::int64_t>> best;
      const bool few = 16 * k <= n;
      const std::int64_t pieces = rows > 1 ? 1 : std::clamp<std::int64_t>(n / kGrain, 1, omp_get_max_threads());
      const Tensor memory = empty({few ? 0 : 2 * n}, {DType::int64, kCPU});
      for (std::int64_t row = begin; row < end; ++row) {
        const auto key_at = [x_row = data + row * n, descending](std::int64_t i) { return sort_key<T>(x_row[i], descending); };
        if (few) select_first(key_at, n, k, best, out + row * k);
        else sort_row(key_at, n, k, pieces, static_cast<Word*>(memory.raw_data()), out + row * k);
      }
    });
  });
  if (values.defined()) gather(values, x, indices, {rows, n, k, 1, false});
}

}  // namespace glade::cpu
