#include <glade/core/generator.h>

namespace glade {

Generator& default_generator() {
  static Generator generator;
  return generator;
}

void manual_seed(std::uint64_t seed) { default_generator().seed(seed); }

}  // namespace glade
