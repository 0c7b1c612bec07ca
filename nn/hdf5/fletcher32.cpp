#include <glade/nn/hdf5/fletcher32.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace glade::nn::hdf5 {
namespace {

constexpr std::size_t kLanes = 8;
using Words [[gnu::vector_size(kLanes * 2)]] = std::uint16_t;
using Sums [[gnu::vector_size(kLanes * 4)]] = std::uint32_t;

/// x mod 65535 as repeated folding leaves it: 65535 for the multiples other than 0.
std::uint64_t fold(std::uint64_t x) {
  while (x > 0xffff) x = (x & 0xffff) + (x >> 16);
  return x;
}

std::uint32_t swap_bytes(std::uint64_t x) { return static_cast<std::uint32_t>((x & 0xff) << 8 | x >> 8); }

}  // namespace

std::uint32_t fletcher32(std::span<const std::uint8_t> bytes) {
  // Swapping the bytes of a word multiplies it by 256 modulo 65535, so the sums of little-endian words give those of
  // big-endian ones.
  static_assert(std::endian::native == std::endian::little);
  constexpr std::size_t kBlock = 256 * sizeof(Words);  // in which no lane's sums overflow
  std::uint64_t sum1 = 0, sum2 = 0;
  while (!bytes.empty()) {
    const std::size_t used = std::min(bytes.size(), kBlock);
    // Every lane sums its words, and those sums: a word is counted once for each vector from its own to the last.
    Sums plain{}, weighted{};
    const auto add = [&](const std::uint8_t* at, std::size_t size) {
      Words words{};
      std::memcpy(&words, at, size);
      plain += __builtin_convertvector(words, Sums);
      weighted += plain;
    };
    const std::size_t whole = used / sizeof(Words) * sizeof(Words);
    for (std::size_t at = 0; at < whole; at += sizeof(Words)) add(bytes.data() + at, sizeof(Words));
    if (whole < used) add(bytes.data() + whole, used - whole);
    bytes = bytes.subspan(used);

    const std::uint64_t vectors = (used + sizeof(Words) - 1) / sizeof(Words), words = (used + 1) / 2;
    const std::uint64_t missing = vectors * kLanes - words;  // in the last vector
    std::uint64_t block1 = 0, block2 = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      block1 += plain[lane];
      block2 += kLanes * std::uint64_t{weighted[lane]} - (lane + missing) * plain[lane];
    }
    sum2 = fold(sum2 + words * sum1 + block2);
    sum1 = fold(sum1 + block1);
  }
  return swap_bytes(sum2) << 16 | swap_bytes(sum1);
}

}  // namespace glade::nn::hdf5
