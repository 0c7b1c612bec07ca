#pragma once
#include <glade/nn/module.h>

namespace glade::nn {

/// Zeroes elements with probability p and scales the others by 1 / (1 - p) while training; x itself in evaluation. Draws
/// from default_generator().
class Dropout : public UnaryModule {
 public:
  /// ValueError for p outside [0, 1].
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) const override;
  double p() const { return p_; }  ///< The probability with which an element becomes 0.

 private:
  double p_;
};

}  // namespace glade::nn
