#pragma once
// Gathering gradients, and where the tape ends.
#include <mutex>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// a + b, recorded where recording is on.
Tensor accumulate(const Tensor& a, const Tensor& b);

/// The end of the tape at a leaf: adds what arrives to the leaf's grad(). Its sequence number is the lowest, so it runs
/// when all contributions of a backward pass are in.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(const Tensor& leaf) : Node("AccumulateGrad", 0), leaf_(leaf.shared_impl()) {}
  Tensors backward(Tensors gradients) override;

 private:
  std::shared_ptr<TensorImpl> leaf_;
  std::mutex mutex_;
};

}  // namespace glade::autograd
