#include <glade/nn/hdf5/fletcher32.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace glade::nn::hdf5 {
namespace {

/// x mod 65535 as repeated folding leaves it: 65535 for the multiples other than 0.
std::uint64_t fold(std::uint64_t x) {
  while (x > 0xffff) x = (x & 0xffff) + (x >> 16);
  return x;
}

std::uint32_t swap_bytes(std::uint64_t x) { return static_cast<std::uint32_t>((x & 0xff) << 8 | x >> 8); }

}  // namespace

std::uint32_t fletcher32(std::span<const std::uint8_t> bytes) {
  // Swapping the bytes of a word multiplies it by 256 modulo 65535, so the sums of little-endian words give those of
  // big-endian ones. In a block of 256 words, both sums fit into 32 bits.
  static_assert(std::endian::native == std::endian::little);
  constexpr std::uint32_t kBlock = 256;
  std::uint64_t sum1 = 0, sum2 = 0;
  while (!bytes.empty()) {
    std::uint16_t words[kBlock] = {};
    const std::size_t used = std::min<std::size_t>(bytes.size(), sizeof words);
    const auto n = static_cast<std::uint32_t>((used + 1) / 2);
    std::memcpy(words, bytes.data(), used);
    bytes = bytes.subspan(used);
    std::uint32_t plain = 0, weighted = 0;
#pragma omp simd reduction(+ : plain, weighted)
    for (std::uint32_t i = 0; i < kBlock; ++i) {
      plain += words[i];
      weighted += (kBlock - i) * words[i];
    }
    // The words that are missing in the last block were counted in the weights.
    sum2 = fold(sum2 + n * sum1 + weighted - std::uint64_t{kBlock - n} * plain);
    sum1 = fold(sum1 + plain);
  }
  return swap_bytes(sum2) << 16 | swap_bytes(sum1);
}

}  // namespace glade::nn::hdf5
