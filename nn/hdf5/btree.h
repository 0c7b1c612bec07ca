#pragma once
// B-trees of HDF5's version 2. Not public.
#include <vector>

#include <glade/nn/hdf5/source.h>

namespace glade::nn::hdf5 {

/// All records of the tree whose header is at `address`, in order.
std::vector<Bytes> read_btree2(Source& source, std::uint64_t address);

}  // namespace glade::nn::hdf5
