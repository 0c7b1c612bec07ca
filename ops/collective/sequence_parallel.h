#pragma once
// Sequence parallel: what mixes tokens, over sequences whose tokens are shared out over the ranks of a group.
//
// Rank 0 has the first tokens of every sequence of the batch, rank 1 the next ones, and so on; their numbers may differ. All
// ranks call the function, with arguments that agree in all else, and backward() as in collective.h. A rank gets the outputs of
// its tokens; all ranks get the final states of the whole sequences, the same bits. Of initial states, that of the rank counts
// which has the tokens that are computed first; the others get gradients of zero. The losses of all ranks use the final states,
// or none does: else all ranks get a ShapeError in backward(). Gradients of weights are those of a rank's tokens, to be added up
// over the ranks. In a group of one these are the functions of the same names.
//
// Packed sequences lie one after the other over all ranks, in a batch of 1. A rank's cu_seqlens is that of the sequences of which
// it has tokens, at least one token, as share_sequences() gives it. Initial and final states are those of these sequences, on
// this rank alone: the final state of a sequence that goes on, on the next rank, is the one after this rank's tokens, and its
// loss may use it or not. What the ranks exchange is one state each, for the sequence that crosses the border to the next rank.
#include <utility>

#include <glade/core/process_group.h>
#include <glade/ops/convolution/convolution.h>
#include <glade/ops/linear_attention/linear_attention.h>

namespace glade {

/// recurrent(): every rank finds what its tokens do to a state, all exchange that at once, and each goes on from the state before
/// its own tokens (LASP-2, arXiv 2502.07563); backward() likewise. What is exchanged does not depend on the number of
/// tokens: [N, H, K, V] and decays, in the state's dtype, once in either direction; N is 1 for packed sequences.
std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                                    const ProcessGroup& group);

/// short_convolution(): every rank takes the last W - 1 inputs of the rank before. On all ranks ValueError or ShapeError where
/// ranks have fewer tokens than that.
std::pair<Tensor, Tensor> short_convolution(const Tensor& x, const Tensor& weight, const ShortConvolutionOptions& options,
                                            const ProcessGroup& group);

/// The part of `cu_seqlens`, int32 or int64 [N + 1] of packed sequences, for the tokens [begin, end), counted from `begin`: int64
/// on the CPU. The first number is negative where the first sequence begins earlier, the last one larger than end - begin where
/// the last sequence goes on. An empty sequence at a border belongs to no rank. ValueError for tokens that are not there.
Tensor share_sequences(const Tensor& cu_seqlens, std::pair<std::int64_t, std::int64_t> tokens);

}  // namespace glade
