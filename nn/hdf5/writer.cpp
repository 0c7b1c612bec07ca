#include <glade/nn/hdf5/writer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <glade/core/format.h>
#include <glade/core/instruction_set.h>
#include <glade/nn/hdf5/fletcher32.h>

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

/// Whole rows up to about a MiB, or parts of one; of even sizes, so that little of the last chunk is empty.
std::array<hsize_t, kMaxDims> chunk_shape(const Shape& shape, std::size_t element_size) {
  std::array<hsize_t, kMaxDims> chunk{};
  std::int64_t budget = (std::int64_t{1} << 20) / static_cast<std::int64_t>(element_size);
  for (int d = shape.ndim() - 1; d >= 0; --d) {
    const std::int64_t most = std::min(shape[d], std::max<std::int64_t>(budget, 1)), chunks = (shape[d] + most - 1) / most;
    const std::int64_t size = (shape[d] + chunks - 1) / chunks;
    chunk[static_cast<std::size_t>(d)] = static_cast<hsize_t>(size);
    budget = chunks == 1 ? budget / size : 1;
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
T Writer::check(T result, const std::string& entry, const char* action) const {
  if (result < 0) fail<CheckpointError>("{}: {}: {} failed: {}", output_.path(), entry, action, last_reason());
  return result;
}

Writer::Writer(OutputFile& output) : output_(output) {
  instruction_set();  // whose error must not come from a parallel loop of checksums
  // The formats since HDF5 1.10, whose metadata have checksums.
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  const bool ready = output.attach(access) >= 0 && H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0;
  file_ = Handle(ready ? H5Fcreate(output.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access) : -1, H5Fclose);
  if (file_ < 0) fail<CheckpointError>("{}: cannot be created: {}", output.path(), last_reason());
}

void Writer::write_attribute(const std::string& name, const std::string& value) {
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose), space(H5Screate(H5S_SCALAR), H5Sclose);
  check(H5Tset_size(type, std::max<std::size_t>(value.size(), 1)), name, "making the string type");
  check(H5Tset_strpad(type, H5T_STR_NULLPAD), name, "making the string type");
  check(H5Tset_cset(type, H5T_CSET_UTF8), name, "making the string type");
  const Handle attribute(H5Acreate2(file_, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  check(hid_t{attribute}, name, "creating the attribute");
  check(H5Awrite(attribute, type, value.c_str()), name, "writing the attribute");
}

void Writer::write_attribute(const std::string& name, std::int64_t value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(H5Acreate2(file_, name.c_str(), H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  check(hid_t{attribute}, name, "creating the attribute");
  check(H5Awrite(attribute, H5T_NATIVE_INT64, &value), name, "writing the attribute");
}

void Writer::create_group(const std::string& name) {
  const Handle group(H5Gcreate2(file_, name.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  check(hid_t{group}, name, "creating the group");
}

void Writer::write(const std::string& name, const Tensor& x, int compression, bool checksums) {
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
  if (x.ndim() > 0 && x.numel() > 0 && checksums && compression == 0) write_chunks(dataset, values, name);
  else if (x.numel() > 0)
    check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.raw_data()), name, "writing the dataset");
  check(dataset.close(), name, "closing the dataset");
  output_.check();
}

// HDF5's own path copies each chunk twice and sums it byte by byte, which takes longer than the disk.
void Writer::write_chunks(hid_t dataset, const Tensor& values, const std::string& name) {
  const Shape& shape = values.shape();
  const std::array<hsize_t, kMaxDims> chunk = chunk_shape(shape, dtype_size(values.dtype()));
  std::size_t bytes = dtype_size(values.dtype());
  for (int d = 0; d < shape.ndim(); ++d) bytes *= chunk[static_cast<std::size_t>(d)];
  std::vector<std::uint8_t> buffer(bytes + sizeof(std::uint32_t));

  // A chunk is a run of elements, shorter where it reaches beyond the shape in the dimension that is cut.
  std::array<hsize_t, kMaxDims> at{};
  const auto* next = static_cast<const std::uint8_t*>(values.raw_data());
  for (int d = 0; d >= 0;) {
    std::size_t used = dtype_size(values.dtype());
    for (int i = 0; i < shape.ndim(); ++i) {
      const auto k = static_cast<std::size_t>(i);
      used *= std::min(chunk[k], static_cast<hsize_t>(shape[i]) - at[k]);
    }
    std::memcpy(buffer.data(), next, used);
    std::memset(buffer.data() + used, 0, bytes - used);
    next += used;
    const std::uint32_t sum = fletcher32({buffer.data(), bytes});
    std::memcpy(buffer.data() + bytes, &sum, sizeof sum);
    check(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, at.data(), buffer.size(), buffer.data()), name, "writing the dataset");
    output_.check();

    for (d = shape.ndim() - 1; d >= 0; --d) {  // the next position in row-major order
      const auto k = static_cast<std::size_t>(d);
      if ((at[k] += chunk[k]) < static_cast<hsize_t>(shape[d])) break;
      at[k] = 0;
    }
  }
}

void Writer::link(const std::string& existing, const std::string& name) {
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  check(H5Pset_create_intermediate_group(links, 1), name, "preparing the groups");
  check(H5Lcreate_hard(file_, existing.c_str(), file_, name.c_str(), links, H5P_DEFAULT), name, "linking the dataset");
}

void Writer::close() {
  check(file_.close(), "/", "closing the file");
  output_.check();
}

}  // namespace glade::nn::hdf5
