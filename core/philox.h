#pragma once
// Philox4x32-10 (Salmon et al. 2011) and its uniform numbers, the same source on both devices.
#include <cstdint>

#include <glade/core/float16.h>

namespace glade {

struct Philox4 {
  std::uint32_t x[4];
};

/// The generator's function: a counter of 128 bits, least significant word first, under a key of 64.
GLADE_HOST_DEVICE inline Philox4 philox4x32(Philox4 counter, std::uint64_t key) {
  std::uint32_t c0 = counter.x[0], c1 = counter.x[1], c2 = counter.x[2], c3 = counter.x[3];
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The four numbers of counter `counter` under `seed`.
GLADE_HOST_DEVICE inline Philox4 philox(std::uint64_t seed, std::uint64_t counter) {
  return philox4x32({{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}}, seed);
}

/// In [0, 1), a multiple of 2^-24: exact in float32.
GLADE_HOST_DEVICE inline float uniform_from_bits(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

}  // namespace glade
