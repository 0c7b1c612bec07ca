#pragma once
// HDF5 files as named tensors: glade's own checkpoints and those of other programs.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <glade/nn/state_dict.h>

namespace glade::nn {

/// A tensor in a file.
struct HDF5Entry {
  std::string name;                ///< its path, "model/layers/0/weight"
  DType dtype = DType::float32;    ///< As which it is read, see HDF5File.
  Shape shape;                     ///< Sizes of the dimensions, in the file's order.
  std::uint64_t stored_bytes = 0;  ///< What its values take in the file, compressed or not.
  std::string first_name;          ///< of a tensor with several names (hard links), the first; else `name`
  std::string problem;             ///< why it cannot be read; empty for those that can
};

/// Which tensors to load, under which names, and as what.
struct LoadOptions {
  /// Patterns of names, of which one must match the whole name ('*': any characters, '?': one); none: every tensor.
  std::vector<std::string> include = {};
  /// Renames: of the first pair whose first part begins the name, the second takes its place.
  std::vector<std::pair<std::string, std::string>> rename = {};
  Device device = kCPU;             ///< Where the tensors go.
  std::optional<DType> dtype = {};  ///< to convert floating-point tensors to
};

/// A file open for reading. Files need not be trusted: whatever they hold, they give right values or a CheckpointError
/// "<file>: <entry>: <cause>", in time and memory that the file's size justifies, and nothing outside of the file is read.
/// Numbers are read as the smallest dtype that holds them all (int8 and uint16 as int32, uint32 as int64).
class HDF5File {
 public:
  /// Reads the file's structure, not its values.
  explicit HDF5File(const std::string& path);
  ~HDF5File();
  HDF5File(HDF5File&&) noexcept;
  HDF5File& operator=(HDF5File&&) noexcept;

  const std::string& path() const;  ///< As given to the constructor.
  /// All datasets and links, by name. A group with several names has its entries under one of them.
  const std::vector<HDF5Entry>& entries() const;
  /// Whether there is an entry or a group of this name.
  bool contains(const std::string& name) const;

  /// Attributes of the root group; nothing where they are missing.
  std::optional<std::string> string_attribute(const std::string& name) const;
  /// A string or an integer of any width, as h5py and glade write them.
  std::optional<std::int64_t> integer_attribute(const std::string& name) const;

  /// One tensor, without touching the others.
  Tensor read(const std::string& name, Device device = kCPU, std::optional<DType> dtype = {}) const;
  /// The same into an existing tensor of its shape, without other memory where it is row-major, on the CPU and of the
  /// entry's dtype. Damage that is found on the way leaves the target partly written: see verify.
  void read_into(const std::string& name, const Tensor& target) const { read_into({{name, target}}); }
  /// Several at once, in parallel.
  void read_into(const NamedTensors& targets) const;
  /// Reads the values and checks their checksums, and keeps nothing.
  void verify(const std::string& name) const { verify(std::vector{name}); }
  void verify(const std::vector<std::string>& names) const;

  /// The entries that `options` select below the group `prefix`, without their values: new names ('.' for '/', without the
  /// prefix) and the entries. CheckpointError for two of the same name, or a selected one with a problem.
  std::vector<std::pair<std::string, const HDF5Entry*>> select(const std::string& prefix, const LoadOptions& options = {}) const;
  /// Their values; a tensor with several names is loaded once and shared.
  StateDict load(const std::string& prefix = "", const LoadOptions& options = {}) const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

/// Loads the tensors below the group `prefix` of any HDF5 file.
StateDict load_state_dict_hdf5(const std::string& path, const std::string& prefix = "", const LoadOptions& options = {});

}  // namespace glade::nn
