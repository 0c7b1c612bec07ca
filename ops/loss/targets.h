#pragma once
// Checks that the losses of classes share.
#include <glade/core/tensor.h>
#include <glade/ops/loss/loss.h>
#include <glade/ops/loss/loss_kernels.h>

namespace glade {

/// ValueError for a label_smoothing outside [0, 1).
ClassLossOptions class_loss_options(const char* name, const CrossEntropyOptions& options);
/// The targets as row-major int64, for an input [..., classes] that errors call `argument`.
Tensor check_targets(const char* name, const char* argument, const Shape& input, const Tensor& targets,
                     std::int64_t ignore_index);

}  // namespace glade
