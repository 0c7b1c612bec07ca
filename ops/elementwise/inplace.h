#pragma once
// In-place operations, for optimisers, initialisers and buffers. They are not recorded: with recording on, AutogradError
// where the target or the source requires a gradient. A changed tensor that was saved for backward makes that backward
// an AutogradError. A source that shares memory with the target is read before anything is written. ValueError for a target that
// is expanded, and for numbers that a target of integers cannot hold. Return their first argument.
#include <optional>

#include <glade/core/tensor.h>

namespace glade {

/// Whether the ranges of memory that two tensors lie in overlap, be it memory of one or of several owners.
bool share_memory(const Tensor& a, const Tensor& b);

/// What every in-place operation asks of its target and sources, for those that compute apart and copy_().
void check_in_place(const char* operation, const Tensor& x, std::initializer_list<const Tensor*> sources = {});

const Tensor& copy_(const Tensor& x, const Tensor& source);  ///< converts dtype and device, broadcasts source
const Tensor& fill_(const Tensor& x, Scalar value);          ///< Every element becomes `value`, converted to x's dtype.
const Tensor& zero_(const Tensor& x);                        ///< Every element becomes 0.
/// x += alpha * y, y broadcast to x's shape. This and the next compute in the dtype that x + y has, and round the result to x's.
const Tensor& add_(const Tensor& x, const Tensor& y, Scalar alpha = 1);
const Tensor& add_(const Tensor& x, Scalar y);              ///< x += y for a number.
const Tensor& multiply_(const Tensor& x, const Tensor& y);  ///< x *= y, y broadcast to x's shape.
const Tensor& multiply_(const Tensor& x, Scalar y);         ///< x *= y for a number.
const Tensor& divide_(const Tensor& x, const Tensor& y);    ///< x /= y, y broadcast to x's shape; integers are refused.
const Tensor& divide_(const Tensor& x, Scalar y);           ///< x /= y for a number; integers are refused.
/// As clamp and masked_fill; DTypeError where a tensor of integers cannot hold the result.
const Tensor& clamp_(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max = std::nullopt);
const Tensor& masked_fill_(const Tensor& x, const Tensor& mask, Scalar value);  ///< `value` where `mask` holds, see masked_fill.
/// The same with the elements of a tensor; mask and value broadcast to x's shape.
const Tensor& masked_fill_(const Tensor& x, const Tensor& mask, const Tensor& value);

}  // namespace glade
