#pragma once
// Tensors and attributes in HDF5 files, with every return code checked. For checkpoint.cpp and its like; not public.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <glade/nn/hdf5_api.h>
#include <glade/nn/output_file.h>
#include <glade/nn/state_dict.h>

namespace glade::nn::hdf5 {

/// An HDF5 identifier, closed at the end of its scope.
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, herr_t (*closer)(hid_t)) : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(closer_, other.closer_);
    return *this;
  }
  ~Handle() { close(); }
  operator hid_t() const { return id_; }
  herr_t close() { return id_ >= 0 ? closer_(std::exchange(id_, -1)) : 0; }

 private:
  hid_t id_ = -1;
  herr_t (*closer_)(hid_t) = nullptr;
};

/// Keeps HDF5 from printing its errors on this thread for a scope.
class QuietErrors {
 public:
  QuietErrors();
  ~QuietErrors();
  QuietErrors(const QuietErrors&) = delete;
  QuietErrors& operator=(const QuietErrors&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

/// An open file, with its name for the messages: all members throw CheckpointError "<file>: <entry>: <cause>".
class File {
 public:
  /// A new file, to be committed by the caller after close().
  static File create(OutputFile& output);
  static File open(const std::string& path);

  void write_attribute(const std::string& name, const std::string& value);
  void write_attribute(const std::string& name, std::int64_t value);
  bool has_attribute(const std::string& name) const;
  std::string string_attribute(const std::string& name) const;
  std::int64_t integer_attribute(const std::string& name) const;

  void create_group(const std::string& name);
  /// Stores a tensor as dataset `name`, in chunks of about a MiB; the groups above are made as needed.
  void write(const std::string& name, const Tensor& x, int compression, bool checksums);
  /// Makes `name` another name of the dataset `existing`.
  void link(const std::string& existing, const std::string& name);
  /// All datasets below the group, named from there with '.' for '/'; nothing where the group is missing.
  StateDict read_group(const std::string& name) const;

  /// Hands everything to the output file.
  void close();

 private:
  File(std::string path, Handle file) : path_(std::move(path)), file_(std::move(file)) {}
  Tensor read(hid_t dataset, const std::string& name) const;
  void check_storage(hid_t dataset, const Shape& shape, std::size_t bytes, const std::string& name) const;
  /// `result` where it is not negative, else the error with HDF5's own reason.
  template <class T>
  T check(T result, const std::string& entry, const char* action) const;
  Handle attribute(const std::string& name) const;

  std::string path_;
  Handle file_;
  const OutputFile* output_ = nullptr;
};

}  // namespace glade::nn::hdf5
