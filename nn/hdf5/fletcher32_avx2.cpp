// Fletcher-32's loops for AVX2. CMake compiles this file for processors that have it, and no others run it.
#define GLADE_SIMD_BYTES 32
#include <glade/nn/hdf5/fletcher32_words.h>

namespace glade::nn::hdf5 {

void add_words_avx2(FletcherSums& sums, const std::uint8_t* bytes, std::size_t size);
void add_words_avx2(FletcherSums& sums, const std::uint8_t* bytes, std::size_t size) { add_words(sums, bytes, size); }

}  // namespace glade::nn::hdf5
