#pragma once
// Philox4x32-10 (Salmon et al. 2011) and its uniform numbers, the same source on both devices.
#include <cstdint>

#include <glade/core/float16.h>

namespace glade {

struct Philox4 {
  std::uint32_t x[4];
};

/// The upper half of a b, whose lower half goes to `low`.
GLADE_HOST_DEVICE inline std::uint32_t wide_product(std::uint32_t a, std::uint32_t b, std::uint32_t& low) {
#if defined(__CUDA_ARCH__)
  // One instruction: from a product of 64 bits the compiler goes on in 64 bits, which takes several times as many.
  std::uint32_t high;
  asm("{.reg .b64 product; mul.wide.u32 product, %2, %3; mov.b64 {%0, %1}, product;}" : "=r"(low), "=r"(high) : "r"(a), "r"(b));
  return high;
#else
  const std::uint64_t product = std::uint64_t{a} * b;
  low = static_cast<std::uint32_t>(product);
  return static_cast<std::uint32_t>(product >> 32);
#endif
}

/// The generator's function: a counter of 128 bits, least significant word first, under a key of 64.
GLADE_HOST_DEVICE inline Philox4 philox4x32(Philox4 counter, std::uint64_t key) {
  std::uint32_t c0 = counter.x[0], c1 = counter.x[1], c2 = counter.x[2], c3 = counter.x[3];
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    std::uint32_t low0, low1;
    const std::uint32_t high0 = wide_product(0xD2511F53u, c0, low0), high1 = wide_product(0xCD9E8D57u, c2, low1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
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
