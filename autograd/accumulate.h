#pragma once
// Gathering gradients, and where the tape ends.
#include <mutex>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// a + b, recorded where recording is on.
Tensor accumulate(const Tensor& a, const Tensor& b);

/// The end of the tape at a leaf: adds what arrives to the leaf's grad(), then calls the hooks that wait for that. Its sequence
/// number is the lowest, so that it runs when all contributions of a backward pass are in.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(const Tensor& leaf) : Node("AccumulateGrad", 0), leaf_(leaf.shared_impl()) {}
  Tensors backward(Tensors gradients) override;
  const std::shared_ptr<TensorImpl>& leaf() const { return leaf_; }
  bool has_post_accumulate_hooks() const { return !leaf_->autograd->post_accumulate_hooks.empty(); }

 private:
  std::shared_ptr<TensorImpl> leaf_;
  std::mutex mutex_;
};

}  // namespace glade::autograd
