#pragma once
// Where a GPU's memory is.
#include <string>
#include <utility>
#include <vector>

#include <glade/core/tensor.h>

namespace glade::cuda {

/// Tensors by what they are for: {{"parameters", model.parameters()}, ...}.
using MemoryCategories = std::vector<std::pair<std::string, Tensors>>;

/// A table, in MiB: live tensors, by category (memory that several tensors share counts for the first) and all others; the most
/// that was live since the last reset_peak_memory_stats; what the pool holds from the driver; what is free on the device.
/// DeviceError without a GPU.
std::string memory_summary(int device = 0, const MemoryCategories& categories = {});

}  // namespace glade::cuda
