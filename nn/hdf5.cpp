#include <glade/nn/hdf5.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <glade/core/format.h>

namespace glade::nn::hdf5 {
namespace {

/// The innermost message of HDF5's error stack.
std::string last_reason() {
  std::string reason;
  const auto first = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    *static_cast<std::string*>(out) = error->desc != nullptr ? error->desc : "";
    return 1;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, first, &reason);
  return reason.empty() ? "unknown HDF5 error" : reason;
}

/// A little-endian IEEE-like type of 16 bits with so many exponent and mantissa bits.
hid_t float_type_of_16_bits(std::size_t exponent, std::size_t mantissa) {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  const bool good = type >= 0 && H5Tset_fields(type, 15, mantissa, exponent, 0, mantissa) >= 0 &&
                    H5Tset_precision(type, 16) >= 0 && H5Tset_size(type, 2) >= 0 &&
                    H5Tset_ebias(type, (std::size_t{1} << (exponent - 1)) - 1) >= 0;
  return good ? type : -1;
}

/// As h5py stores NumPy's bool.
hid_t bool_type() {
  const hid_t type = H5Tenum_create(H5T_STD_I8LE);
  const std::int8_t no = 0, yes = 1;
  return type >= 0 && H5Tenum_insert(type, "FALSE", &no) >= 0 && H5Tenum_insert(type, "TRUE", &yes) >= 0 ? type : -1;
}

/// The type of a dtype's elements, in files as in memory.
Handle element_type(DType dtype) {
  const auto make = [&]() -> hid_t {
    switch (dtype) {
      case DType::float64: return H5Tcopy(H5T_IEEE_F64LE);
      case DType::float32: return H5Tcopy(H5T_IEEE_F32LE);
      case DType::bfloat16: return float_type_of_16_bits(8, 7);
      case DType::float16: return float_type_of_16_bits(5, 10);
      case DType::int64: return H5Tcopy(H5T_STD_I64LE);
      case DType::int32: return H5Tcopy(H5T_STD_I32LE);
      case DType::uint8: return H5Tcopy(H5T_STD_U8LE);
      case DType::boolean: return bool_type();
    }
    return -1;
  };
  return Handle(make(), H5Tclose);
}

std::optional<DType> dtype_of_type(hid_t type) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::int32,
                            DType::uint8, DType::boolean})
    if (H5Tequal(type, element_type(dtype)) > 0) return dtype;
  return std::nullopt;
}

/// Whole rows up to about a MiB, or parts of one.
std::array<hsize_t, kMaxDims> chunk_shape(const Shape& shape, std::size_t element_size) {
  std::array<hsize_t, kMaxDims> chunk{};
  std::int64_t budget = (std::int64_t{1} << 20) / static_cast<std::int64_t>(element_size);
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    const std::int64_t size = std::min(shape[d], std::max<std::int64_t>(budget, 1));
    chunk[static_cast<std::size_t>(d)] = static_cast<hsize_t>(size);
    budget /= size;
  }
  return chunk;
}

}  // namespace

QuietErrors::QuietErrors() {
  H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}
QuietErrors::~QuietErrors() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }

template <class T>
T File::check(T result, const std::string& entry, const char* action) const {
  if (result < 0) fail<CheckpointError>("{}: {}: {} failed: {}", path_, entry, action, last_reason());
  return result;
}

File File::create(OutputFile& output) {
  // The formats since HDF5 1.10, whose metadata have checksums.
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const bool ready = output.attach(access) >= 0 && H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0;
  Handle handle(ready ? H5Fcreate(output.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access) : -1, H5Fclose);
  if (handle < 0) fail<CheckpointError>("{}: cannot be created: {}", output.path(), last_reason());
  File file(output.path(), std::move(handle));
  file.output_ = &output;
  return file;
}

File File::open(const std::string& path) {
  // The system's reason is clearer than HDF5's.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail<CheckpointError>("{}: cannot be opened: {}", path, std::strerror(errno));
  ::close(descriptor);
  Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
  if (file < 0) fail<CheckpointError>("{}: not an HDF5 file, or truncated or damaged: {}", path, last_reason());
  return File(path, std::move(file));
}

void File::write_attribute(const std::string& name, const std::string& value) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
  check(H5Tset_size(type, std::max<std::size_t>(value.size(), 1)), name, "making the string type");
  check(H5Tset_strpad(type, H5T_STR_NULLPAD), name, "making the string type");
  check(H5Tset_cset(type, H5T_CSET_UTF8), name, "making the string type");
  const Handle attribute(H5Acreate2(file_, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  check(hid_t{attribute}, name, "creating the attribute");
  check(H5Awrite(attribute, type, value.c_str()), name, "writing the attribute");
}

void File::write_attribute(const std::string& name, std::int64_t value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(H5Acreate2(file_, name.c_str(), H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  check(hid_t{attribute}, name, "creating the attribute");
  check(H5Awrite(attribute, H5T_NATIVE_INT64, &value), name, "writing the attribute");
}

bool File::has_attribute(const std::string& name) const {
  return check(H5Aexists(file_, name.c_str()), name, "looking for the attribute") > 0;
}

Handle File::attribute(const std::string& name) const {
  if (!has_attribute(name)) fail<CheckpointError>("{}: attribute {} is missing", path_, name);
  Handle attribute(H5Aopen(file_, name.c_str(), H5P_DEFAULT), H5Aclose);
  check(hid_t{attribute}, name, "opening the attribute");
  const Handle space(H5Aget_space(attribute), H5Sclose);
  if (H5Sget_simple_extent_type(space) != H5S_SCALAR) fail<CheckpointError>("{}: attribute {} is not a scalar", path_, name);
  return attribute;
}

std::string File::string_attribute(const std::string& name) const {
  constexpr std::size_t kLongest = std::size_t{1} << 20;
  const Handle value = attribute(name), type(H5Aget_type(value), H5Tclose);
  if (H5Tget_class(type) != H5T_STRING) fail<CheckpointError>("{}: attribute {} is not a string", path_, name);
  // HDF5 stores those of variable length without a checksum, and a damaged one can keep it from ever returning.
  if (H5Tis_variable_str(type) != 0) fail<CheckpointError>("{}: attribute {} is not a string of fixed length", path_, name);
  const std::size_t size = H5Tget_size(type);
  if (size > kLongest) fail<CheckpointError>("{}: attribute {} has {} bytes, more than a MiB", path_, name, size);
  std::string text(size, '\0');
  check(H5Aread(value, type, text.data()), name, "reading the attribute");
  text.resize(std::min(size, text.find('\0')));
  return text;
}

std::int64_t File::integer_attribute(const std::string& name) const {
  const Handle value = attribute(name), type(H5Aget_type(value), H5Tclose);
  if (H5Tget_class(type) != H5T_INTEGER) fail<CheckpointError>("{}: attribute {} is not an integer", path_, name);
  std::int64_t result = 0;
  check(H5Aread(value, H5T_NATIVE_INT64, &result), name, "reading the attribute");
  return result;
}

void File::create_group(const std::string& name) {
  const Handle group(H5Gcreate2(file_, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  check(hid_t{group}, name, "creating the group");
}

void File::write(const std::string& name, const Tensor& x, int compression, bool checksums) {
  const Tensor values = to_data(contiguous_data(x), kCPU);
  const Handle type = element_type(x.dtype());
  check(hid_t{type}, name, "making the element type");
  std::array<hsize_t, kMaxDims> dims{};
  std::copy(x.shape().begin(), x.shape().end(), dims.begin());
  const Handle space(x.ndim() == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(x.ndim(), dims.data(), nullptr), H5Sclose);
  check(hid_t{space}, name, "making the shape");

  const Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose), links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  check(H5Pset_create_intermediate_group(links, 1), name, "preparing the groups");
  if (x.ndim() == 0) {
    check(H5Pset_layout(layout, H5D_COMPACT), name, "setting the layout");  // among the metadata, under their checksum
  } else if (x.numel() > 0) {
    check(H5Pset_chunk(layout, x.ndim(), chunk_shape(x.shape(), dtype_size(x.dtype())).data()), name, "setting the chunks");
    if (compression > 0) {
      check(H5Pset_shuffle(layout), name, "setting the filters");
      check(H5Pset_deflate(layout, static_cast<unsigned>(compression)), name, "setting the filters");
    }
    if (checksums) check(H5Pset_fletcher32(layout), name, "setting the filters");
  }
  Handle dataset(H5Dcreate2(file_, name.c_str(), type, space, links, layout, H5P_DEFAULT), H5Dclose);
  check(hid_t{dataset}, name, "creating the dataset");
  if (x.numel() > 0)
    check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.raw_data()), name, "writing the dataset");
  check(dataset.close(), name, "closing the dataset");
  output_->check();
}

void File::link(const std::string& existing, const std::string& name) {
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  check(H5Pset_create_intermediate_group(links, 1), name, "preparing the groups");
  check(H5Lcreate_hard(file_, existing.c_str(), file_, name.c_str(), links, H5P_DEFAULT), name, "linking the dataset");
}

StateDict File::read_group(const std::string& name) const {
  StateDict result;
  if (check(H5Lexists(file_, name.c_str(), H5P_DEFAULT), name, "looking for the group") == 0) return result;
  const Handle group(H5Gopen2(file_, name.c_str(), H5P_DEFAULT), H5Gclose);
  check(hid_t{group}, name, "opening the group");

  // H5Lvisit goes into a group once, however many links lead to it.
  std::vector<std::pair<std::string, bool>> links;
  const auto collect = [](hid_t, const char* path, const H5L_info_t* info, void* out) -> herr_t {
    static_cast<decltype(links)*>(out)->emplace_back(path, info->type == H5L_TYPE_HARD);
    return 0;
  };
  check(H5Lvisit(group, H5_INDEX_NAME, H5_ITER_INC, collect, &links), name, "listing the group");
  for (const auto& [path, is_hard] : links) {
    const std::string full = name + '/' + path;
    if (!is_hard) fail<CheckpointError>("{}: {}: soft and external links are not followed", path_, full);
    const Handle object(H5Oopen(group, path.c_str(), H5P_DEFAULT), H5Oclose);
    check(hid_t{object}, full, "opening");
    const H5I_type_t kind = H5Iget_type(object);
    if (kind == H5I_GROUP) continue;
    if (kind != H5I_DATASET) fail<CheckpointError>("{}: {}: neither a group nor a dataset", path_, full);
    std::string key = path;
    std::ranges::replace(key, '/', '.');
    if (!result.emplace(key, read(object, full)).second) fail<CheckpointError>("{}: {}: {} is there twice", path_, full, key);
  }
  return result;
}

Tensor File::read(hid_t dataset, const std::string& name) const {
  const Handle type(H5Dget_type(dataset), H5Tclose), space(H5Dget_space(dataset), H5Sclose);
  check(hid_t{type}, name, "reading the element type");
  check(hid_t{space}, name, "reading the shape");
  const std::optional<DType> dtype = dtype_of_type(type);
  if (!dtype) fail<CheckpointError>("{}: {}: its element type is none of glade's", path_, name);

  const int ndim = H5Sget_simple_extent_ndims(space);
  if (H5Sis_simple(space) <= 0 || H5Sget_simple_extent_type(space) == H5S_NULL || ndim < 0 || ndim > kMaxDims)
    fail<CheckpointError>("{}: {}: not an array of up to {} dimensions", path_, name, kMaxDims);
  std::array<hsize_t, kMaxDims> dims{};
  check(H5Sget_simple_extent_dims(space, dims.data(), nullptr), name, "reading the shape");
  Shape shape;
  std::size_t bytes = dtype_size(*dtype);
  for (int d = 0; d < ndim; ++d) {
    const hsize_t size = dims[static_cast<std::size_t>(d)];
    shape.push_back(static_cast<std::int64_t>(size));
    if (size > (hsize_t{1} << 48) || __builtin_mul_overflow(bytes, size, &bytes))
      fail<CheckpointError>("{}: {}: its size overflows", path_, name);
  }
  check_storage(dataset, shape, bytes, name);

  Tensor x = empty(shape, {*dtype, kCPU});
  if (bytes > 0)
    check(H5Dread(dataset, element_type(*dtype), H5S_ALL, H5S_ALL, H5P_DEFAULT, x.raw_data()), name,
          "reading the dataset (damaged?)");
  if (*dtype == DType::boolean) {
    const auto* values = static_cast<const std::uint8_t*>(x.raw_data());
    if (std::any_of(values, values + bytes, [](std::uint8_t v) { return v > 1; }))
      fail<CheckpointError>("{}: {}: holds values that are no bools", path_, name);
  }
  return x;
}

// Nothing is allocated that the file does not justify, and nothing outside it is read or loaded.
void File::check_storage(hid_t dataset, const Shape& shape, std::size_t bytes, const std::string& name) const {
  constexpr std::size_t kBestCompression = 1100;  // deflate reaches 1032 : 1
  const Handle layout(H5Dget_create_plist(dataset), H5Pclose);
  check(hid_t{layout}, name, "reading the layout");
  const H5D_layout_t kind = H5Pget_layout(layout);
  if (kind == H5D_VIRTUAL || H5Pget_external_count(layout) != 0)
    fail<CheckpointError>("{}: {}: its data lie outside the file", path_, name);
  std::size_t ratio = 1;
  for (int i = 0; i < H5Pget_nfilters(layout); ++i) {
    unsigned flags = 0;
    std::size_t count = 0;
    const H5Z_filter_t filter = H5Pget_filter2(layout, static_cast<unsigned>(i), &flags, &count, nullptr, 0, nullptr, nullptr);
    if (filter == H5Z_FILTER_DEFLATE) ratio = kBestCompression;
    else if (filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32)
      fail<CheckpointError>("{}: {}: filter {} is not supported", path_, name, static_cast<int>(filter));
  }
  if (kind == H5D_CHUNKED) {
    std::array<hsize_t, kMaxDims> chunk{};
    check(H5Pget_chunk(layout, shape.ndim(), chunk.data()), name, "reading the chunks");
    for (int d = 0; d < shape.ndim(); ++d)
      if (chunk[static_cast<std::size_t>(d)] > static_cast<hsize_t>(std::max<std::int64_t>(shape[d], 1)))
        fail<CheckpointError>("{}: {}: its chunks are larger than itself", path_, name);
  }
  if (const hsize_t stored = H5Dget_storage_size(dataset); stored < bytes / ratio)
    fail<CheckpointError>("{}: {}: holds {} bytes, its shape {} needs {}", path_, name, stored, shape, bytes);
}

void File::close() {
  check(file_.close(), "/", "closing the file");
  output_->check();
}

}  // namespace glade::nn::hdf5
