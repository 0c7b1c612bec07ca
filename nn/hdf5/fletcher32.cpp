// Fletcher-32 for any processor, and the choice among the loops for particular ones.
#define GLADE_SIMD_BYTES 16
#include <glade/nn/hdf5/fletcher32.h>

#include <bit>

#include <glade/core/instruction_set.h>
#include <glade/nn/hdf5/fletcher32_words.h>

namespace glade::nn::hdf5 {

using AddWords = void(FletcherSums& sums, const std::uint8_t* bytes, std::size_t size);
AddWords add_words_avx2, add_words_avx512;

namespace {

AddWords& widest_add_words() {
#if defined(__x86_64__)
  switch (instruction_set()) {
    case InstructionSet::avx512: return add_words_avx512;
    case InstructionSet::avx2: return add_words_avx2;
    case InstructionSet::portable: break;
  }
#endif
  return add_words;
}

std::uint32_t swap_bytes(std::uint64_t x) { return static_cast<std::uint32_t>((x & 0xff) << 8 | x >> 8); }

}  // namespace

void Fletcher32::add(std::span<const std::uint8_t> bytes) {
  static AddWords& add_to = widest_add_words();
  add_to(sums_, bytes.data(), bytes.size());
}

std::uint32_t Fletcher32::value() const {
  // Swapping the bytes of a word multiplies it by 256 modulo 65535, so the sums of little-endian words give those of
  // big-endian ones.
  static_assert(std::endian::native == std::endian::little);
  return swap_bytes(sums_.weighted) << 16 | swap_bytes(sums_.plain);
}

std::uint32_t fletcher32(std::span<const std::uint8_t> bytes) {
  Fletcher32 sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace glade::nn::hdf5
