#pragma once
// Losses.
#include <glade/core/tensor.h>

namespace glade {

/// What becomes of the losses of the rows or elements: their mean, their sum, or none: they stay as they are.
enum class Reduction { mean, sum, none };

/// What counts, and how, in a cross entropy.
struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;       ///< targets with this value count for nothing
  double label_smoothing = 0;             ///< in [0, 1): share of the target spread over all classes
  Reduction reduction = Reduction::mean;  ///< mean over the targets that count (NaN where none does); none: 0 for the others
};

/// Of logits [..., C] against class indices [...] (int64 or int32). Computed in float32 for 16-bit logits; the result is
/// a float32 (float64 for float64) scalar, or one for each target. One pass over the logits, without a one-hot matrix (but the
/// gradient of the gradient, with create_graph, builds one). A target outside [0, C) that is not ignore_index is an IndexError on
/// the CPU; on a GPU, where checking would wait for the device, it makes the loss NaN.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options = {});
/// cross_entropy(linear(x, weight), targets, options) for x [..., in] and weight [C, in], the head of a language model, without
/// ever holding all logits: a block of rows at a time, forward and backward at once. The products are computed in x's dtype as
/// by linears(), the loss and the weight's gradient in float32 (float64 for float64).
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets, CrossEntropyOptions options = {});
/// cross_entropy from log-probabilities [..., C].
Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets, std::int64_t ignore_index = -100,
                Reduction reduction = Reduction::mean);

// Losses of two tensors of equal shapes (ShapeError). Computed in float32 (float64 where one of them is), which is the result's
// dtype; without reduction the result has their shape.

/// (a - b)^2
Tensor mse_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);
/// |a - b|
Tensor l1_loss(const Tensor& a, const Tensor& b, Reduction reduction = Reduction::mean);
/// -(y log p + (1 - y) log(1 - p)) for probabilities p and targets y in [0, 1]; logarithms are at least -100. ValueError for
/// probabilities outside of [0, 1], on the CPU: on a GPU, where looking would wait for the device, they give NaN.
Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& targets, Reduction reduction = Reduction::mean);
/// binary_cross_entropy(sigmoid(logits), targets) without overflow. positive_weight, which broadcasts to targets, weighs the
/// term of targets that are 1.
Tensor binary_cross_entropy_with_logits(const Tensor& logits, const Tensor& targets, Reduction reduction = Reduction::mean,
                                        const Tensor& positive_weight = {});
/// t (log t - x) for log-probabilities x and probabilities t (or, with log_targets, their logarithms): the sum is the
/// Kullback-Leibler divergence of x's distribution from t's. The mean is over all elements.
Tensor kl_div(const Tensor& log_probabilities, const Tensor& targets, Reduction reduction = Reduction::mean,
              bool log_targets = false);

}  // namespace glade
