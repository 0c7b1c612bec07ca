#pragma once
// Sequence parallel: what mixes tokens, over sequences whose tokens are shared out over the ranks of a group.
//
// Rank 0 has the first tokens of every sequence of the batch, rank 1 the next ones, and so on; their numbers may differ. All
// ranks call the function, with arguments that agree in all else, and backward() as in collective.h. A rank gets the outputs of
// its tokens; all ranks get the final states of the whole sequences, the same bits. Of initial states, that of the rank counts
// which has the tokens that are computed first; the others get gradients of zero. The losses of all ranks use the final states,
// or none does: else all ranks get a ShapeError in backward(). Gradients of weights are those of a rank's tokens, to be added up
// over the ranks. In a group of one these are the functions of the same names.
#include <utility>

#include <glade/core/process_group.h>
#include <glade/ops/convolution/convolution.h>
#include <glade/ops/linear_attention/linear_attention.h>

namespace glade {

/// recurrent(): every rank computes what its tokens do to a state, all exchange that at once, and each goes on from the state
/// before its own tokens (LASP-2, arXiv 2502.07563); backward() likewise. What is exchanged does not depend on the number of
/// tokens: [N, H, K, V] and decays, in the state's dtype, once in either direction. ValueError with cu_seqlens.
std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                                    const ProcessGroup& group);

/// short_convolution(): every rank takes the last W - 1 inputs of the rank before. ValueError with cu_seqlens, and on all ranks
/// ValueError or ShapeError where ranks have fewer tokens than that.
std::pair<Tensor, Tensor> short_convolution(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options,
                                            const ProcessGroup& group);

}  // namespace glade
