#include <glade/core/philox_block.h>

#include <glade/core/philox.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace glade::cpu {

#if defined(__AVX2__)

// Eight counters at a time, four in the lanes of 64 bits of a vector: products read the lower half of a lane and fill all of it,
// and what is left in upper halves does not matter. Compilers shuffle halves instead, which takes twice as long.
void philox_block(std::uint64_t seed, std::uint64_t first, std::uint32_t (&numbers)[4][kPhiloxBlock]) {
  const auto all = [](std::uint64_t x) { return _mm256_set1_epi64x(static_cast<long long>(x)); };
  for (int i = 0; i < kPhiloxBlock; i += 8) {
    __m256i c[4][2];  // the words of even counters, and of odd ones
    for (int odd = 0; odd < 2; ++odd) {
      c[0][odd] = _mm256_add_epi64(all(first + static_cast<std::uint64_t>(i + odd)), _mm256_set_epi64x(6, 4, 2, 0));
      c[1][odd] = _mm256_srli_epi64(c[0][odd], 32);
      c[2][odd] = c[3][odd] = _mm256_setzero_si256();
    }
    auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int odd = 0; odd < 2; ++odd) {
        const __m256i p0 = _mm256_mul_epu32(c[0][odd], all(0xD2511F53u)), p1 = _mm256_mul_epu32(c[2][odd], all(0xCD9E8D57u));
        c[0][odd] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c[1][odd]), all(k0));
        c[1][odd] = p1;
        c[2][odd] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c[3][odd]), all(k1));
        c[3][odd] = p0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int j = 0; j < 4; ++j)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(&numbers[j][i]),
                          _mm256_blend_epi32(c[j][0], _mm256_slli_epi64(c[j][1], 32), 0b10101010));
  }
}

#else

void philox_block(std::uint64_t seed, std::uint64_t first, std::uint32_t (&numbers)[4][kPhiloxBlock]) {
  for (int i = 0; i < kPhiloxBlock; ++i) {
    const Philox4 words = philox(seed, first + static_cast<std::uint64_t>(i));
    for (int j = 0; j < 4; ++j) numbers[j][i] = words.x[j];
  }
}

#endif

}  // namespace glade::cpu
