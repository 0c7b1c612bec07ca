#pragma once
// Losses as modules.
#include <glade/nn/module.h>
#include <glade/ops/loss/loss.h>

namespace glade::nn {

/// A loss of an input and targets.
class Loss : public Module {
 public:
  /// The loss as a scalar, or without reduction a tensor of losses. Shapes as in the function of the derived class.
  virtual Tensor forward(const Tensor& input, const Tensor& targets) const = 0;
  /// forward(input, targets)
  Tensor operator()(const Tensor& input, const Tensor& targets) const { return forward(input, targets); }
};

/// cross_entropy of logits [C], [N, C], or, with the classes in dimension 1 as in PyTorch, [N, C, d1, ...], against class indices
/// of the other dimensions. (The function cross_entropy has the classes last.)
class CrossEntropyLoss : public Loss {
 public:
  /// `options` as in the function cross_entropy.
  explicit CrossEntropyLoss(const CrossEntropyOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& input, const Tensor& targets) const override;
  const CrossEntropyOptions& options() const { return options_; }  ///< As given to the constructor.

 private:
  CrossEntropyOptions options_;
};

/// nll_loss of log-probabilities, with the classes in dimension 1 as in CrossEntropyLoss.
class NLLLoss : public Loss {
 public:
  /// Targets of ignore_index count for nothing.
  explicit NLLLoss(std::int64_t ignore_index = -100, Reduction reduction = Reduction::mean)
      : ignore_index_(ignore_index), reduction_(reduction) {}
  Tensor forward(const Tensor& input, const Tensor& targets) const override;
  std::int64_t ignore_index() const { return ignore_index_; }  ///< The target that counts for nothing.
  Reduction reduction() const { return reduction_; }           ///< What becomes of the losses of the targets.

 private:
  std::int64_t ignore_index_;
  Reduction reduction_;
};

/// A loss of two tensors of equal shapes.
class ElementwiseLoss : public Loss {
 public:
  explicit ElementwiseLoss(Reduction reduction) : reduction_(reduction) {}  ///< For the losses below.
  Reduction reduction() const { return reduction_; }                        ///< What becomes of the losses of the elements.

 private:
  Reduction reduction_;
};

/// mse_loss
class MSELoss : public ElementwiseLoss {
 public:
  /// `reduction` says what becomes of the losses of the elements.
  explicit MSELoss(Reduction reduction = Reduction::mean) : ElementwiseLoss(reduction) {}
  Tensor forward(const Tensor& a, const Tensor& b) const override { return mse_loss(a, b, reduction()); }
};

/// l1_loss
class L1Loss : public ElementwiseLoss {
 public:
  /// `reduction` says what becomes of the losses of the elements.
  explicit L1Loss(Reduction reduction = Reduction::mean) : ElementwiseLoss(reduction) {}
  Tensor forward(const Tensor& a, const Tensor& b) const override { return l1_loss(a, b, reduction()); }
};

/// binary_cross_entropy
class BCELoss : public ElementwiseLoss {
 public:
  /// `reduction` says what becomes of the losses of the elements.
  explicit BCELoss(Reduction reduction = Reduction::mean) : ElementwiseLoss(reduction) {}
  Tensor forward(const Tensor& p, const Tensor& targets) const override { return binary_cross_entropy(p, targets, reduction()); }
};

/// binary_cross_entropy_with_logits; `positive_weight` is a buffer of the module.
class BCEWithLogitsLoss : public ElementwiseLoss {
 public:
  explicit BCEWithLogitsLoss(Reduction reduction = Reduction::mean, const Tensor& positive_weight = {})
      : ElementwiseLoss(reduction),
        pos_weight(positive_weight.defined() ? register_buffer("pos_weight", positive_weight.detach()) : Tensor()) {}
  Tensor forward(const Tensor& logits, const Tensor& targets) const override {
    return binary_cross_entropy_with_logits(logits, targets, reduction(), pos_weight);
  }

  const Tensor pos_weight;  ///< Weighs the term of targets that are 1; undefined: 1.
};

/// kl_div
class KLDivLoss : public ElementwiseLoss {
 public:
  /// With log_target, targets are logarithms of probabilities. With batch_mean the result, which reduction then makes the sum, is
  /// divided by the size of dimension 0: the divergence as it is defined, on average.
  explicit KLDivLoss(Reduction reduction = Reduction::mean, bool log_target = false, bool batch_mean = false)
      : ElementwiseLoss(batch_mean ? Reduction::sum : reduction), log_target_(log_target), is_batch_mean_(batch_mean) {}
  Tensor forward(const Tensor& x, const Tensor& targets) const override;
  bool log_target() const { return log_target_; }        ///< Whether targets are logarithms of probabilities.
  bool is_batch_mean() const { return is_batch_mean_; }  ///< Whether the sum is divided by the size of dimension 0.

 private:
  bool log_target_, is_batch_mean_;
};

}  // namespace glade::nn
