#pragma once
// Safetensors files (https://github.com/huggingface/safetensors), in which models are published: a JSON header with the
// name, type, shape and place of every tensor, then their bytes.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <glade/nn/state_dict.h>

namespace glade::nn {

class InputFile;

/// A file open for reading. Its header is checked in full before anything is taken from it: CheckpointError that names the
/// file, the tensor and the cause.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);  ///< Reads and checks the header alone.

  const std::string& path() const { return path_; }      ///< As given to the constructor.
  const TensorInfos& tensors() const { return infos_; }  ///< What is in the file, by name.
  /// Free text by key.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// A tensor on the CPU that shows the file's own bytes, mapped into memory, without a copy where they are aligned. Writing
  /// to it changes no file, but the file must not be changed in place while a tensor lives; it may be replaced or deleted.
  /// CheckpointError where the name is unknown.
  Tensor read(const std::string& name) const;
  /// The same for rows `begin` to `end` (not included) of a tensor's first dimension; no other part of it is read.
  /// CheckpointError also where it has no such rows.
  Tensor read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const;
  /// All of them.
  StateDict read_all() const;

 private:
  const TensorInfo& info(const std::string& name) const;
  /// The bytes from `offset` into the tensor on, as `shape`.
  Tensor read_part(const std::string& name, std::size_t offset, const Shape& shape) const;

  std::string path_;
  std::shared_ptr<const InputFile> file_;
  TensorInfos infos_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::size_t> begins_;  ///< of the tensors, in the file
};

/// Writes a file with `tensors`, replacing an older one only when it is whole, as save does. `read` gives the
/// values, one tensor at a time, so that a file can be larger than the memory. CheckpointError that names the file and
/// the cause.
void save_safetensors(const std::string& path, const TensorInfos& tensors,
                      const std::function<Tensor(const std::string& name)>& read,
                      const std::map<std::string, std::string>& metadata = {});
/// The same for tensors at hand, on any device.
void save_safetensors(const std::string& path, const StateDict& tensors, const std::map<std::string, std::string>& metadata = {});

}  // namespace glade::nn
