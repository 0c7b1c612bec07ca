#pragma once
// The checksum of datasets.
#include <cstdint>
#include <span>

namespace glade::nn::hdf5 {

/// Fletcher-32 over big-endian 16-bit words, exactly as HDF5's filter computes it, of bytes that come part by part.
class Fletcher32 {
 public:
  /// All parts but the last have an even number of bytes.
  void add(std::span<const std::uint8_t> bytes);
  std::uint32_t value() const;

 private:
  std::uint64_t sum_ = 0;       ///< of the words
  std::uint64_t weighted_ = 0;  ///< of those sums after each word
};

std::uint32_t fletcher32(std::span<const std::uint8_t> bytes);

}  // namespace glade::nn::hdf5
