#pragma once
// Losses.
#include <glade/core/tensor.h>

namespace glade {

enum class Reduction { mean, sum };

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;       ///< targets with this value count for nothing
  double label_smoothing = 0;             ///< in [0, 1): share of the target spread over all classes
  Reduction reduction = Reduction::mean;  ///< mean over the targets that count (NaN where none does)
};

/// Of logits [..., C] against class indices [...] (int64 or int32). Computed in float32 for 16-bit logits; the result is
/// a float32 (float64 for float64) scalar. One pass over the logits, without a one-hot matrix (but the gradient of the
/// gradient, with create_graph, builds one). A target outside [0, C) that is not ignore_index is an IndexError on the CPU;
/// on a GPU, where checking would wait for the device, it makes the loss NaN.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options = {});
/// cross_entropy(linear(x, weight), targets, options) for x [..., in] and weight [C, in], the head of a language model, without
/// ever holding all logits: a block of rows at a time, forward and backward at once. The products are computed in x's dtype as
/// by linears(), the loss and the weight's gradient in float32 (float64 for float64).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, CrossEntropyOptions options = {});
/// cross_entropy from log-probabilities [..., C].
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, std::int64_t ignore_index = -100,
                Reduction reduction = Reduction::mean);
/// Of (a - b)^2; shapes must be equal. Computed in float32 (float64 where a or b is), which is the result's dtype.
Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);

}  // namespace glade
