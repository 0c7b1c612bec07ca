#include <glade/nn/hdf5/fletcher32.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace glade::nn::hdf5 {
namespace {

#if defined(__AVX512BW__)
constexpr std::size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr std::size_t kVectorBytes = 32;
#else
constexpr std::size_t kVectorBytes = 16;
#endif
constexpr std::size_t kLanes = kVectorBytes / 4, kWords = kVectorBytes / 2;
using Lanes [[gnu::vector_size(kVectorBytes)]] = std::uint32_t;  // of two words each
constexpr std::size_t kBlock = 255 * kVectorBytes;               // in which no lane's sums overflow

/// x mod 65535 as repeated folding leaves it: 65535 for the multiples other than 0.
std::uint64_t fold(std::uint64_t x) {
  while (x > 0xffff) x = (x & 0xffff) + (x >> 16);
  return x;
}

std::uint32_t swap_bytes(std::uint64_t x) { return static_cast<std::uint32_t>((x & 0xff) << 8 | x >> 8); }

}  // namespace

void Fletcher32::add(std::span<const std::uint8_t> bytes) {
  while (!bytes.empty()) {
    const std::size_t used = std::min(bytes.size(), kBlock), whole = used / kVectorBytes * kVectorBytes;
    // Every lane sums its words, and those sums: a word is counted once for each vector from its own to the last.
    Lanes sums{}, first_words{}, weighted{};
    const auto add_vector = [&](const std::uint8_t* at, std::size_t size) {
      Lanes words{};
      std::memcpy(&words, at, size);
      const Lanes first = words & 0xffff;
      first_words += first;
      sums += first + (words >> 16);
      weighted += sums;
    };
    for (std::size_t at = 0; at < whole; at += kVectorBytes) add_vector(bytes.data() + at, kVectorBytes);
    if (whole < used) add_vector(bytes.data() + whole, used - whole);
    bytes = bytes.subspan(used);

    const std::uint64_t vectors = (used + kVectorBytes - 1) / kVectorBytes, words = (used + 1) / 2;
    const std::uint64_t missing = vectors * kWords - words;  // in the last vector
    std::uint64_t block = 0, block_weighted = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      block += sums[lane];
      // The lane's second word is counted once less than its first, at position 2 * lane of each vector.
      block_weighted += kWords * std::uint64_t{weighted[lane]} + first_words[lane];
      block_weighted -= (2 * lane + 1 + missing) * sums[lane];
    }
    weighted_ = fold(weighted_ + words * sum_ + block_weighted);
    sum_ = fold(sum_ + block);
  }
}

std::uint32_t Fletcher32::value() const {
  // Swapping the bytes of a word multiplies it by 256 modulo 65535, so the sums of little-endian words give those of
  // big-endian ones.
  static_assert(std::endian::native == std::endian::little);
  return swap_bytes(weighted_) << 16 | swap_bytes(sum_);
}

std::uint32_t fletcher32(std::span<const std::uint8_t> bytes) {
  Fletcher32 sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace glade::nn::hdf5
