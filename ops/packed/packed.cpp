#include <glade/ops/packed/packed.h>

#include <glade/core/format.h>
#include <glade/core/graph.h>

namespace glade {

namespace {

std::vector<std::int64_t> read(const char* operation, const Tensor& cu_seqlens, const char* name, const Tensor& x,
                               std::int64_t batch, std::int64_t tokens) {
  if (cu_seqlens.dtype() != DType::int64 && cu_seqlens.dtype() != DType::int32)
    fail<DTypeError>("{}: cu_seqlens is {}: expected int32 or int64", operation, cu_seqlens.dtype());
  if (cu_seqlens.ndim() != 1 || cu_seqlens.numel() == 0)
    fail<ShapeError>("{}: cu_seqlens is {}: expected [number of sequences + 1]", operation, cu_seqlens.shape());
  if (batch != 1) fail<ShapeError>("{}: cu_seqlens needs a batch of 1, {} is {}", operation, name, x.shape());
  std::vector<std::int64_t> boundaries = cu_seqlens.to_vector<std::int64_t>();
  if (boundaries.front() != 0 || boundaries.back() != tokens)
    fail<ValueError>("{}: cu_seqlens goes from {} to {}: expected 0 to {}, the tokens of {} {}", operation, boundaries.front(),
                     boundaries.back(), tokens, name, x.shape());
  for (std::size_t i = 1; i < boundaries.size(); ++i)
    if (boundaries[i] < boundaries[i - 1])
      fail<ValueError>("{}: cu_seqlens falls from {} to {} at position {}", operation, boundaries[i - 1], boundaries[i], i);
  return boundaries;
}

}  // namespace

PackedSequences packed_sequences(const char* operation, const Tensor& cu_seqlens, const char* name, const Tensor& x,
                                 std::int64_t batch, std::int64_t tokens) {
  PackedSequences found{read(operation, cu_seqlens, name, x, batch, tokens), {}};
  if (x.device().is_cpu() || cuda::is_capturing()) {  // a graph would outlive what is kept here
    found.cu_seqlens = Tensor::from_vector(found.boundaries, x.device());
    return found;
  }
  thread_local PackedSequences last;    // every layer of a model asks for the same
  thread_local void* stream = nullptr;  // that they are copied on
  void* const current = current_stream(x.device().index).handle;
  if (!last.cu_seqlens.defined() || !(last.cu_seqlens.device() == x.device()) || stream != current ||
      last.boundaries != found.boundaries) {
    last = {found.boundaries, Tensor::from_vector(found.boundaries, x.device())};
    stream = current;
  }
  return last;
}

}  // namespace glade
