#pragma once
// Writes tensors and attributes to HDF5 files, with every return code checked. Not public.
#include <cstdint>
#include <string>
#include <utility>

#include <glade/nn/hdf5/api.h>
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

/// A new file: all members throw CheckpointError "<file>: <entry>: <cause>".
class Writer {
 public:
  /// The caller commits `output` after close().
  explicit Writer(OutputFile& output);
  const std::string& path() const { return output_.path(); }

  void write_attribute(const std::string& name, const std::string& value);
  void write_attribute(const std::string& name, std::int64_t value);

  void create_group(const std::string& name);
  /// Stores a tensor as dataset `name`, in chunks of about a MiB; the groups above are made as needed.
  void write(const std::string& name, const Tensor& x, int compression, bool checksums);
  /// Makes `name` another name of the dataset `existing`.
  void link(const std::string& existing, const std::string& name);

  /// Hands everything to the output file.
  void close();

 private:
  void write_chunks(hid_t dataset, const Tensor& values, const std::string& name);
  /// `result` where it is not negative, else the error with HDF5's own reason.
  template <class T>
  T check(T result, const std::string& entry, const char* action) const;

  OutputFile& output_;
  Handle file_;
};

}  // namespace glade::nn::hdf5
