#pragma once
// The binary interface of DLPack (https://dmlc.github.io/dlpack), versions 0 and 1: what of it glade uses.
#include <cstdint>

namespace glade::dlpack {

enum DeviceType : std::int32_t { kCPU = 1, kCUDA = 2, kCUDAHost = 3 };
enum TypeCode : std::uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct DataType {
  std::uint8_t code = 0;
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;
};

struct Array {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: row-major
  std::uint64_t byte_offset;
};

/// In a capsule named "dltensor".
struct ManagedTensor {
  Array array;
  void* context;
  void (*deleter)(ManagedTensor*);
};

constexpr std::uint64_t kReadOnly = 1;  // of the flags

/// In a capsule named "dltensor_versioned".
struct ManagedTensorVersioned {
  std::uint32_t major = 1;
  std::uint32_t minor = 0;
  void* context;
  void (*deleter)(ManagedTensorVersioned*);
  std::uint64_t flags = 0;
  Array array;
};

}  // namespace glade::dlpack
