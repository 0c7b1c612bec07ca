#pragma once
// The checksum of datasets.
#include <cstddef>
#include <cstdint>
#include <span>

namespace glade::nn::hdf5 {

/// Modulo 65535.
struct FletcherSums {
  std::uint64_t plain = 0;     ///< of the words
  std::uint64_t weighted = 0;  ///< of the plain sums after each word
};

/// Fletcher-32 over big-endian 16-bit words, exactly as HDF5's filter computes it, of bytes that come part by part.
class Fletcher32 {
 public:
  /// All parts but the last have an even number of bytes.
  void add(std::span<const std::uint8_t> bytes);
  std::uint32_t value() const;

 private:
  FletcherSums sums_;
};

std::uint32_t fletcher32(std::span<const std::uint8_t> bytes);

}  // namespace glade::nn::hdf5
