#include <glade/nn/embedding.h>

#include <glade/core/format.h>
#include <glade/nn/init.h>
#include <glade/ops/index/index.h>
#include <glade/ops/shape/shape.h>

namespace glade::nn {

Embedding::Embedding(std::int64_t num_embeddings, std::int64_t dim, std::int64_t padding_idx)
    : weight(register_parameter("weight", empty({num_embeddings, dim}), &weight)), padding_idx_(padding_idx) {
  if (padding_idx >= num_embeddings)
    fail<IndexError>("Embedding: padding_idx is {}, expected less than {}", padding_idx, num_embeddings);
  init::normal_(weight);
  if (padding_idx >= 0) init::constant_(select(weight.detach(), 0, padding_idx), 0);
}

Tensor Embedding::forward(const Tensor& indices) const { return embedding(indices, weight, padding_idx_); }

}  // namespace glade::nn
