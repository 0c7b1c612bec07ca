#pragma once
// The exceptions glade throws. One type per cause; all derive from glade::Error.
#include <stdexcept>
#include <string>

namespace glade {

/// What glade throws: catch it for every cause.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// clang-format off
struct ShapeError : Error { using Error::Error; };          ///< sizes that do not fit together
struct DTypeError : Error { using Error::Error; };          ///< an element type the operation does not take
struct DeviceError : Error { using Error::Error; };         ///< tensors on different devices, or a device that is not there
struct IndexError : Error { using Error::Error; };          ///< a dimension or position out of range
struct ValueError : Error { using Error::Error; };          ///< any other argument out of its domain
struct AutogradError : Error { using Error::Error; };       ///< misuse of the tape
struct OutOfMemoryError : Error { using Error::Error; };    ///< an allocation that failed
struct CudaError : Error { using Error::Error; };           ///< a CUDA or cuBLAS call that failed
struct CheckpointError : Error { using Error::Error; };     ///< a file that cannot be read or written as asked
// clang-format on

}  // namespace glade
