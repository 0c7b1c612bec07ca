// Fletcher-32 against its definition.
#include <glade/nn/hdf5/fletcher32.h>

#include <random>
#include <vector>

#include "support/testing.h"

namespace glade::nn::hdf5 {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Sums modulo 65535 after every word, where the multiples of 65535 but 0 are 65535, as HDF5 leaves them.
std::uint32_t by_definition(const Bytes& bytes) {
  const auto add = [](std::uint32_t a, std::uint32_t b) { return (a + b - 1) % 65535 + 1; };
  std::uint32_t sum = 0, weighted = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    const std::uint32_t word = bytes[i] << 8 | (i + 1 < bytes.size() ? bytes[i + 1] : 0);
    if (sum + word > 0) sum = add(sum, word);
    if (weighted + sum > 0) weighted = add(weighted, sum);
  }
  return weighted << 16 | sum;
}

Bytes random_bytes(std::size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  Bytes bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
  return bytes;
}

TEST(Fletcher32, IsThatOfTheDefinition) {
  for (std::size_t size = 0; size < 300; ++size)
    EXPECT_EQ(fletcher32(random_bytes(size)), by_definition(random_bytes(size))) << size;
  for (const std::size_t size : {4095, 4080, 8160, 8161, 16320, 16321, 100001, 1 << 20}) {
    EXPECT_EQ(fletcher32(random_bytes(size)), by_definition(random_bytes(size))) << size;
    for (const int value : {0, 1, 255}) {  // 255: the largest sums
      const Bytes same(size, static_cast<std::uint8_t>(value));
      EXPECT_EQ(fletcher32(same), by_definition(same)) << size << " times " << value;
    }
  }
}

TEST(Fletcher32, TakesPartsOfAnyEvenSize) {
  const Bytes bytes = random_bytes(50001);
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    Fletcher32 sum;
    for (std::span<const std::uint8_t> rest = bytes; !rest.empty();) {
      const std::size_t size = std::min<std::size_t>(rest.size(), random() % 10000 * 2);
      sum.add(rest.first(size));
      rest = rest.subspan(size);
    }
    EXPECT_EQ(sum.value(), by_definition(bytes));
  }
}

}  // namespace
}  // namespace glade::nn::hdf5
