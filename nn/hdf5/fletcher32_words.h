#pragma once
// The sums of Fletcher-32 in vectors of GLADE_SIMD_BYTES bytes, for the file that includes this. Everything here is local to
// that file, and no function of the standard library is used: what other files share must not be compiled for instructions
// that only some processors have.
#include <cstddef>
#include <cstdint>

#include <glade/nn/hdf5/fletcher32.h>

namespace glade::nn::hdf5 {
namespace {

constexpr std::size_t kVectorBytes = GLADE_SIMD_BYTES, kLanes = kVectorBytes / 4, kWords = kVectorBytes / 2;
typedef std::uint32_t Lanes __attribute__((vector_size(GLADE_SIMD_BYTES)));  // of two words each
constexpr std::size_t kBlock = 255 * kVectorBytes;                           // in which no lane's sums overflow

/// x mod 65535 as repeated folding leaves it: 65535 for the multiples other than 0.
std::uint64_t fold(std::uint64_t x) {
  while (x > 0xffff) x = (x & 0xffff) + (x >> 16);
  return x;
}

/// Adds the little-endian words of some bytes, of which the last is filled up with 0.
void add_words(FletcherSums& sums, const std::uint8_t* bytes, std::size_t size) {
  while (size > 0) {
    const std::size_t used = size < kBlock ? size : kBlock, whole = used / kVectorBytes * kVectorBytes;
    // Every lane sums its words, and those sums: a word is counted once for each vector from its own to the last.
    Lanes plain{}, first_words{}, weighted{};
    const auto add_vector = [&](const std::uint8_t* at, std::size_t n) {
      Lanes words{};
      __builtin_memcpy(&words, at, n);
      const Lanes first = words & 0xffff;
      first_words += first;
      plain += first + (words >> 16);
      weighted += plain;
    };
    for (std::size_t at = 0; at < whole; at += kVectorBytes) add_vector(bytes + at, kVectorBytes);
    if (whole < used) add_vector(bytes + whole, used - whole);
    bytes += used;
    size -= used;

    const std::uint64_t vectors = (used + kVectorBytes - 1) / kVectorBytes, words = (used + 1) / 2;
    const std::uint64_t missing = vectors * kWords - words;  // in the last vector
    std::uint64_t block = 0, block_weighted = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      block += plain[lane];
      // The lane's words stand at 2 * lane and after it in each vector; the second is counted once less than the first.
      block_weighted += kWords * std::uint64_t{weighted[lane]} + first_words[lane];
      block_weighted -= (2 * lane + 1 + missing) * plain[lane];
    }
    sums.weighted = fold(sums.weighted + words * sums.plain + block_weighted);
    sums.plain = fold(sums.plain + block);
  }
}

}  // namespace
}  // namespace glade::nn::hdf5
