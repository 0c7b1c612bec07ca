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

/// An element to be sorted: the highest bits of its key's distance from the row's least key, and below them its position.
using Word = std::uint64_t;

constexpr std::int64_t kFew = 128;  // elements that comparisons sort faster

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
  Word word(std::int64_t i) const {
    const Word high = position_bits < 64 ? Word{Key(key_at(i) - least) >> dropped_bits} << position_bits : 0;
    return high | static_cast<Word>(i);
  }
  std::int64_t position(Word word) const { return static_cast<std::int64_t>(word & ((Word{1} << position_bits) - 1)); }
  /// By words, and where bits were dropped by the whole keys.
  bool operator()(Word a, Word b) const {
    if (dropped_bits == 0 || a >> position_bits != b >> position_bits) return a < b;
    const Key first = key_at(position(a)), second = key_at(position(b));
    return first != second ? first < second : a < b;
  }
};

/// Sorts n words that agree in what lies above `bits` bits of distance. By digits of 8 bits, the lowest first, of as many of
/// the highest bits as tell most words apart; comparisons do the rest. The result is in `words` or, as the return value says, in
/// `other`.
template <class KeyAt>
const Word* sort_words(Word* words, Word* other, std::int64_t n, int bits, const Order<KeyAt>& order) {
  if (n < kFew || n > INT32_MAX) {
    std::sort(words, words + n, order);
    return words;
  }
  constexpr std::size_t kMaxDigits = 5;
  const int enough = std::bit_width(static_cast<std::uint64_t>(n)) + 4;
  const auto digits = static_cast<std::size_t>((std::min(bits, enough) + 7) / 8);
  const int low = order.position_bits + std::max(0, bits - 8 * static_cast<int>(digits));
  std::array<std::array<std::uint32_t, 256>, kMaxDigits> counts;
  for (std::size_t d = 0; d < digits; ++d) counts[d].fill(0);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::size_t d = 0; d < digits; ++d) ++counts[d][words[i] >> low >> (8 * d) & 255];
  for (std::size_t d = 0; d < digits; ++d) {
    std::uint32_t next = 0;
    for (std::uint32_t& c : counts[d]) next += std::exchange(c, next);
    for (std::int64_t i = 0; i < n; ++i) other[counts[d][words[i] >> low >> (8 * d) & 255]++] = words[i];
    std::swap(words, other);
  }
  if (low == order.position_bits && order.dropped_bits == 0) return words;
  for (std::int64_t first = 0, i = 1; i <= n; ++i) {
    if (i < n && words[i] >> low == words[first] >> low) continue;
    if (i - first > 1) std::sort(words + first, words + i, order);
    first = i;
  }
  return words;
}

/// Sorts one long row in parallel: into buckets by the highest bits of the distance, which are then sorted one by one. The sorted
/// words go to put(i, word).
template <class KeyAt, class Put>
void sort_by_buckets(Word* words, Word* other, std::int64_t n, const Order<KeyAt>& order, const Put& put) {
  constexpr int kBucketBits = 12;
  constexpr std::int64_t kPieces = 16;
  const int bits = std::max(0, order.distance_bits - kBucketBits), shift = order.position_bits + bits;
  const std::int64_t piece = (n + kPieces - 1) / kPieces;
  // Of a piece and a bucket: a number of words, then their place.
  std::vector<std::array<std::int64_t, std::size_t{1} << kBucketBits>> next(kPieces);
  const auto for_each_piece = [&](const auto& f) {
    parallel_for(kPieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p)
        for (std::int64_t i = p * piece; i < std::min(n, (p + 1) * piece); ++i) f(next[static_cast<std::size_t>(p)], words[i]);
    });
  };
  for_each_piece([shift](auto& count, Word word) { ++count[word >> shift]; });
  std::vector<std::int64_t> first{0};  // places of the buckets
  for (std::size_t b = 0; b < next[0].size(); ++b) {
    std::int64_t place = first.back();
    for (auto& count : next) place += std::exchange(count[b], place);
    first.push_back(place);
  }
  for_each_piece([shift, other](auto& place, Word word) { other[place[word >> shift]++] = word; });
  parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {  // those buckets that begin in the range
    for (auto b = std::ranges::lower_bound(first, begin); b + 1 != first.end() && *b < end; ++b) {
      if (b[0] == b[1]) continue;
      const Word* sorted = sort_words(other + *b, words + *b, b[1] - *b, bits, order);
      for (std::int64_t i = *b; i < b[1]; ++i) put(i, *sorted++);
    }
  });
}

/// Puts the positions of the first k of n keys in their order into `to`.
template <class KeyAt>
void sort_row(const KeyAt& key_at, std::int64_t n, std::int64_t k, bool alone, Word* words, std::int64_t* to) {
  using Key = typename Order<KeyAt>::Key;
  constexpr std::size_t kParts = 16;  // for the extremes
  std::array<Key, kParts> least, most;
  least.fill(key_at(0));
  most.fill(key_at(0));
  const auto part = (n + static_cast<std::int64_t>(kParts) - 1) / static_cast<std::int64_t>(kParts);
  parallel_for(kParts, n < kGrain ? kParts : 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto p = static_cast<std::size_t>(begin); p < static_cast<std::size_t>(end); ++p)
      for (std::int64_t i = static_cast<std::int64_t>(p) * part; i < std::min(n, (static_cast<std::int64_t>(p) + 1) * part);
           ++i) {
        least[p] = std::min(least[p], key_at(i));
        most[p] = std::max(most[p], key_at(i));
      }
  });
  const Order<KeyAt> order(key_at, n, std::ranges::min(least), std::ranges::max(most));
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) words[i] = order.word(i);
  });
  const auto put = [&](std::int64_t i, Word word) {
    if (i < k) to[i] = order.position(word);
  };
  if (alone && n >= kGrain) return sort_by_buckets(words, words + n, n, order, put);
  const Word* const sorted = sort_words(words, words + n, n, order.distance_bits, order);
  for (std::int64_t i = 0; i < k; ++i) put(i, sorted[i]);
}

/// The same by a heap of the best so far: for a k that is much smaller than n.
template <class Key, class KeyAt>
void select_first(const KeyAt& key_at, std::int64_t n, std::int64_t k, std::vector<std::pair<Key, std::int64_t>>& best,
                  std::int64_t* to) {
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
  for (std::int64_t i = 0; i < k; ++i) to[i] = best[static_cast<std::size_t>(i)].second;
}

}  // namespace

void argsort(const Tensor& indices, const Tensor& x, bool descending) {
  const std::int64_t rows = x.size(0), n = x.size(1), k = indices.size(1);
  if (k == 0) return;
  visit_all(x.dtype(), [&]<class T>(TypeTag<T>) {
    const stored_t<T>* const data = stored(x.data<T>());
    auto* const out = indices.data<std::int64_t>();
    parallel_for(rows, std::max<std::int64_t>(1, kGrain / (8 * n)), [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::pair<sort_key_t<T>, std::int64_t>> best;
      const bool few = 16 * k <= n;
      const Tensor memory = empty({few ? 0 : 2 * n}, {DType::int64, kCPU});
      for (std::int64_t row = begin; row < end; ++row) {
        const auto key_at = [x_row = data + row * n, descending](std::int64_t i) { return sort_key<T>(x_row[i], descending); };
        if (few) select_first(key_at, n, k, best, out + row * k);
        else sort_row(key_at, n, k, rows == 1, static_cast<Word*>(memory.raw_data()), out + row * k);
      }
    });
  });
}

}  // namespace glade::cpu
