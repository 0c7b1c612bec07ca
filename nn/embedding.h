#pragma once
// Rows by index.
#include <glade/nn/module.h>

namespace glade::nn {

/// weight[indices] for int64 or int32 indices of any shape: [..., dim]. Starts normal with deviation 1.
class Embedding : public UnaryModule {
 public:
  /// No gradient flows to row `padding_idx` where it is >= 0; it starts as zeros.
  Embedding(std::int64_t num_embeddings, std::int64_t dim, std::int64_t padding_idx = -1);
  Tensor forward(const Tensor& indices) const override;
  /// The row that is not trained, or -1.
  std::int64_t padding_idx() const { return padding_idx_; }

  Tensor weight;  ///< [num_embeddings, dim]

 private:
  std::int64_t padding_idx_;
};

}  // namespace glade::nn
