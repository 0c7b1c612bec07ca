#include <glade/nn/safetensors.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <nlohmann/json.hpp>

#include <glade/core/format.h>
#include <glade/core/json.h>
#include <glade/nn/input_file.h>
#include <glade/nn/write_safetensors.h>

namespace glade::nn {
namespace {

using nlohmann::json;

// The file: the header's length as a little-endian 64-bit number, the header, the tensors' bytes without gaps.
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kLongestHeader = 100'000'000;  // as in the format's own library
constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<const char*, DType>, 8> kTypes{{{"F64", DType::float64},
                                                               {"F32", DType::float32},
                                                               {"BF16", DType::bfloat16},
                                                               {"F16", DType::float16},
                                                               {"I64", DType::int64},
                                                               {"I32", DType::int32},
                                                               {"U8", DType::uint8},
                                                               {"BOOL", DType::boolean}}};

/// Text from the file, short enough for a message.
std::string brief(const std::string& text) { return text.size() <= 100 ? text : text.substr(0, 100) + "..."; }
std::string brief(const json& value) { return brief(dump_json(value)); }

const json& field(const json& entry, const char* name) {
  const auto value = entry.find(name);
  if (value == entry.end()) fail<CheckpointError>("{} is missing", name);
  return *value;
}

std::size_t read_size(const json& value) {
  constexpr std::size_t kLargest = std::size_t{1} << 62;
  if (!value.is_number_unsigned() || value.get<std::size_t>() > kLargest) fail<CheckpointError>("{} is not a size", brief(value));
  return value.get<std::size_t>();
}

struct Entry {
  TensorInfo info;
  std::size_t begin = 0, end = 0;  ///< among the tensors' bytes
};

Entry read_entry(const json& entry) {
  if (!entry.is_object()) fail<CheckpointError>("{} is not an object", brief(entry));
  for (const auto& [name, value] : entry.items())
    if (name != "dtype" && name != "shape" && name != "data_offsets") fail<CheckpointError>("unknown field '{}'", brief(name));

  Entry result;
  const json &dtype = field(entry, "dtype"), &shape = field(entry, "shape"), &offsets = field(entry, "data_offsets");
  const auto type = std::ranges::find_if(kTypes, [&](const auto& t) { return dtype == t.first; });
  if (type == kTypes.end()) fail<CheckpointError>("its dtype {} is none of glade's", brief(dtype));
  result.info.dtype = type->second;

  if (!shape.is_array() || shape.size() > kMaxDims)
    fail<CheckpointError>("its shape is {}, expected a list of up to {} sizes", brief(shape), kMaxDims);
  std::int64_t extent = static_cast<std::int64_t>(dtype_size(result.info.dtype));  // what the strides must be able to hold
  for (const json& value : shape) {
    const auto size = static_cast<std::int64_t>(read_size(value));
    result.info.shape.push_back(size);
    if (__builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent)) fail<CheckpointError>("its size overflows");
  }
  const std::size_t bytes = static_cast<std::size_t>(result.info.shape.numel()) * dtype_size(result.info.dtype);

  if (!offsets.is_array() || offsets.size() != 2) fail<CheckpointError>("data_offsets is {}, expected a pair", brief(offsets));
  result.begin = read_size(offsets[0]);
  result.end = read_size(offsets[1]);
  if (result.end < result.begin || result.end - result.begin != bytes)
    fail<CheckpointError>("data_offsets is {}, but {} {} takes {} bytes", brief(offsets), result.info.dtype, result.info.shape,
                          bytes);
  return result;
}

std::map<std::string, std::string> read_metadata(const json& value) {
  if (!value.is_object()) fail<CheckpointError>("{} is not an object", brief(value));
  std::map<std::string, std::string> result;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fail<CheckpointError>("'{}' is not a string", brief(key));
    result.emplace(key, text.get<std::string>());
  }
  return result;
}

/// The tensors lie one after the other and fill the `size` bytes after the header.
void check_places(const std::map<std::string, Entry>& entries, std::size_t size) {
  std::vector<std::pair<std::string, Entry>> sorted(entries.begin(), entries.end());
  std::ranges::sort(sorted, {}, [](const auto& e) { return std::pair(e.second.begin, e.second.end); });
  std::size_t end = 0;
  for (const auto& [name, entry] : sorted) {
    if (entry.end > size)
      fail<CheckpointError>("{}: ends at byte {} of {}: the file is truncated, or its header is damaged", brief(name), entry.end,
                            size);
    if (entry.begin != end)
      fail<CheckpointError>("{}: begins at byte {}, but the tensor before ends at {}", brief(name), entry.begin, end);
    end = entry.end;
  }
  if (end != size) fail<CheckpointError>("its tensors end at byte {} of {}", end, size);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  std::string place;  // of the complaint, in the file
  try {
    file_ = std::make_shared<InputFile>(path);
    if (file_->size() < kLengthBytes) fail<CheckpointError>("has {} bytes, too few for a safetensors file", file_->size());
    std::uint64_t length = 0;
    std::memcpy(&length, file_->map(0, kLengthBytes).get(), kLengthBytes);
    const std::size_t rest = file_->size() - kLengthBytes;
    if (length > kLongestHeader || length > rest)
      fail<CheckpointError>("not a safetensors file, or truncated: a header of {} bytes in a file of {}", length, file_->size());

    const auto text = file_->map(0, kLengthBytes + length);
    constexpr int kDeepest = 3;  // the header, a tensor, its shape
    const json header = parse_json_object<CheckpointError>("its header", {text.get() + kLengthBytes, length}, kDeepest);
    std::map<std::string, Entry> entries;
    for (const auto& [name, value] : header.items()) {
      place = brief(name) + ": ";
      if (name == kMetadata) metadata_ = read_metadata(value);
      else entries.emplace(name, read_entry(value));
    }
    place.clear();
    check_places(entries, rest - length);
    for (const auto& [name, entry] : entries) {
      infos_.emplace(name, entry.info);
      begins_.emplace(name, kLengthBytes + length + entry.begin);
    }
  } catch (const CheckpointError& error) {
    fail<CheckpointError>("{}: {}{}", path, place, error.what());
  }
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto info = infos_.find(name);
  if (info == infos_.end()) fail<CheckpointError>("{}: {}: is not in the file", path_, name);
  return info->second;
}

Tensor SafetensorsFile::read(const std::string& name) const { return read_part(name, 0, info(name).shape); }

Tensor SafetensorsFile::read_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const auto& [dtype, shape] = info(name);
  if (shape.ndim() == 0 || begin < 0 || begin > end || end > shape[0])
    fail<CheckpointError>("{}: {}: is {}, which has no rows {} to {}", path_, name, shape, begin, end);
  Shape rows = shape;
  rows[0] = 1;
  const std::size_t row_bytes = static_cast<std::size_t>(rows.numel()) * dtype_size(dtype);
  rows[0] = end - begin;
  return read_part(name, static_cast<std::size_t>(begin) * row_bytes, rows);
}

Tensor SafetensorsFile::read_part(const std::string& name, std::size_t offset, const Shape& shape) const try {
  const DType dtype = infos_.at(name).dtype;
  const std::size_t bytes = static_cast<std::size_t>(shape.numel()) * dtype_size(dtype);
  if (bytes == 0) return empty(shape, {dtype, kCPU});
  const std::shared_ptr<char> data = file_->map_private(begins_.at(name) + offset, bytes);
  if (dtype == DType::boolean && std::any_of(data.get(), data.get() + bytes, [](char v) { return v != 0 && v != 1; }))
    fail<CheckpointError>("holds values that are no bools");
  if (reinterpret_cast<std::uintptr_t>(data.get()) % dtype_size(dtype) == 0)
    return Tensor::from_blob(data.get(), shape, {dtype, kCPU}, [data] {});
  Tensor copy = empty(shape, {dtype, kCPU});
  std::memcpy(copy.raw_data(), data.get(), bytes);
  return copy;
} catch (const CheckpointError& error) {
  fail<CheckpointError>("{}: {}: {}", path_, name, error.what());
}

StateDict SafetensorsFile::read_all() const {
  StateDict result;
  for (const auto& [name, info] : infos_) result.emplace(name, read(name));
  return result;
}

void write_safetensors(OutputFile& output, const TensorInfos& tensors, const std::function<Tensor(const std::string& name)>& read,
                       const std::map<std::string, std::string>& metadata) {
  // Those with large elements first, so that all are aligned when the first is.
  std::vector<std::pair<std::string, TensorInfo>> sorted(tensors.begin(), tensors.end());
  std::ranges::stable_sort(sorted, std::greater(), [](const auto& t) { return dtype_size(t.second.dtype); });
  json header = json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::size_t end = 0;
  for (const auto& [name, info] : sorted) {
    if (name == kMetadata) fail<ValueError>("save_safetensors: a tensor cannot be named {}", kMetadata);
    const auto type = std::ranges::find(kTypes, info.dtype, [](const auto& t) { return t.second; });
    const std::size_t begin = end;
    end += static_cast<std::size_t>(info.shape.numel()) * dtype_size(info.dtype);
    header[name] = {{"dtype", type->first},
                    {"shape", std::vector<std::int64_t>(info.shape.begin(), info.shape.end())},
                    {"data_offsets", {begin, end}}};
  }
  std::string text = dump_json(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();

  output.write(&length, kLengthBytes);
  output.write(text.data(), text.size());
  for (const auto& [name, info] : sorted) {
    const Tensor x = to_data(contiguous_data(read(name)), kCPU);
    if (x.dtype() != info.dtype || !(x.shape() == info.shape))
      fail<ValueError>("save_safetensors: {} is {} {}, announced as {} {}", name, x.dtype(), x.shape(), info.dtype, info.shape);
    output.write(x.raw_data(), static_cast<std::size_t>(x.numel()) * dtype_size(x.dtype()));
  }
}

void save_safetensors(const std::string& path, const TensorInfos& tensors,
                      const std::function<Tensor(const std::string& name)>& read,
                      const std::map<std::string, std::string>& metadata) {
  OutputFile output(path);
  write_safetensors(output, tensors, read, metadata);
  output.commit();
}

void save_safetensors(const std::string& path, const StateDict& tensors, const std::map<std::string, std::string>& metadata) {
  save_safetensors(path, infos_of(tensors), [&](const std::string& name) { return tensors.at(name); }, metadata);
}

}  // namespace glade::nn
