#pragma once
// The numbers of core/philox.h for many counters at once, on the CPU.
#include <cstdint>

namespace glade::cpu {

inline constexpr int kPhiloxBlock = 64;

/// numbers[j][i] = philox(seed, first + i).x[j]
void philox_block(std::uint64_t seed, std::uint64_t first, std::uint32_t (&numbers)[4][kPhiloxBlock]);

}  // namespace glade::cpu
