#include <glade/core/generator.h>

#include <random>

namespace glade {

Generator& default_generator() {
  static Generator generator([] {
    std::random_device entropy;
    return std::uint64_t{entropy()} << 32 | entropy();
  }());
  return generator;
}

void manual_seed(std::uint64_t seed) { default_generator().seed(seed); }

}  // namespace glade
