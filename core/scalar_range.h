#pragma once
// Numbers that integer tensors can hold.
#include <glade/core/dtype.h>

namespace glade {

/// The smallest and the largest number of an integer type; DTypeError for others, bool included.
struct IntegerRange {
  std::int64_t lowest, highest;
  static IntegerRange of(DType dtype);
};

/// Whether `dtype` can hold the whole part of `value`: always, but for integers other than bool.
bool fits(Scalar value, DType dtype);
/// ValueError where it cannot.
void check_fits(const char* operation, Scalar value, DType dtype);

}  // namespace glade
