#pragma once
// The checksum of datasets.
#include <cstdint>
#include <span>

namespace glade::nn::hdf5 {

/// Fletcher-32 over big-endian 16-bit words, exactly as HDF5's filter computes it.
std::uint32_t fletcher32(std::span<const std::uint8_t> bytes);

}  // namespace glade::nn::hdf5
