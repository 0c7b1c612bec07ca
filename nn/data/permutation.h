#pragma once
// A random order of any number of things that takes no memory and can be entered anywhere. Not public.
#include <algorithm>
#include <bit>
#include <cstdint>

#include <glade/core/philox.h>

namespace glade::nn::data {

/// A permutation of [0, size) for every seed and epoch: a Feistel network over the numbers of an even number of bits, applied
/// until the result is below size (Black and Rogaway 2002, "cycle walking").
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch)
      : size_(size), seed_(seed), epoch_(epoch), half_(std::max(static_cast<int>(std::bit_width(size - 1) + 1) / 2, 1)) {}

  std::uint64_t operator()(std::uint64_t i) const {
    do i = mix(i);
    while (i >= size_);
    return i;
  }

 private:
  std::uint64_t mix(std::uint64_t x) const {
    constexpr std::uint32_t kRounds = 6;
    const std::uint64_t mask = (std::uint64_t{1} << half_) - 1;
    std::uint64_t left = x >> half_, right = x & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const auto epoch_low = static_cast<std::uint32_t>(epoch_), epoch_high = static_cast<std::uint32_t>(epoch_ >> 32);
      const Philox4 random = philox4x32({{static_cast<std::uint32_t>(right), round, epoch_low, epoch_high}}, seed_);
      const std::uint64_t mixed = left ^ (random.x[0] & mask);
      left = right;
      right = mixed;
    }
    return left << half_ | right;
  }

  std::uint64_t size_, seed_, epoch_;
  int half_;  // of the bits
};

}  // namespace glade::nn::data
