#pragma once
// Datasets: where their values lie in the file, and reading them. Not public.
#include <span>
#include <string_view>
#include <vector>

#include <glade/nn/hdf5/objects.h>

namespace glade::nn::hdf5 {

/// A part of a dataset as it lies in the file, after its filters.
struct Chunk {
  std::uint64_t address = kUndefined, size = 0;
  std::uint32_t skipped_filters = 0;  ///< one bit a filter
};

struct Filter {
  enum Kind : std::uint16_t { deflate = 1, shuffle = 2, fletcher32 = 3 };
  std::uint16_t kind;
  std::uint32_t parameter;
};

struct Dataset {
  ElementType type;
  Shape shape;
  /// The grid of chunks, which lie in row-major order: values as they are one after the other count as one dimension.
  Shape extent, chunk_shape;
  std::vector<Chunk> chunks;
  std::vector<Filter> filters;
  Bytes compact;  ///< the values, where they lie in the object itself

  std::uint64_t stored_bytes() const;
};

/// Everything about a dataset but its values; what is found can be read within the bounds of the file. CheckpointError where
/// it has no numbers, or not here, or is incomplete.
Dataset open_dataset(Source& source, const Messages& object);

/// A dataset to read, and where to: `out` has room for its values in type.dtype, or is nullptr to check them only.
struct ReadJob {
  std::string_view name;  ///< for errors
  const Dataset* dataset;
  void* out;
};

/// Reads all values of all datasets, in parallel. Throws "<name>: <cause>" where they are damaged, with some of them read.
void read_values(const Source& source, std::span<const ReadJob> jobs);

// ---- for open_dataset --------------------------------------------------------------------------------------------------

/// Fills dataset.chunks from the index that a layout message describes.
void read_chunk_index(Source& source, Dataset& dataset, ByteView layout, const Shape& max_shape);
/// Number of chunks along each dimension of `shape`.
Shape chunk_grid(const Shape& shape, const Shape& chunk_shape);

}  // namespace glade::nn::hdf5
