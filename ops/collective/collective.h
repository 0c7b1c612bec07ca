#pragma once
// Differentiable collectives: what processes exchange, with gradients. core/process_group.h has the forms that know no tape.
//
// All ranks of the group call the same function, and backward() on all of them when one does: the gradient of what a rank gave
// comes from all ranks. It is the gradient of the sum of all ranks' losses. Errors are those of ProcessGroup; a group of one
// copies.
#include <glade/core/process_group.h>
#include <glade/core/tensor.h>

namespace glade {

/// The sum or the average of the ranks' x, or the largest or the smallest of each element (without a gradient: AutogradError
/// where x requires one).
Tensor all_reduce(const Tensor& x, ReduceOp op = ReduceOp::sum, const ProcessGroup& group = ProcessGroup::world());
/// Rank `root`'s x, on all ranks; only root's x gets a gradient other than zero.
Tensor broadcast(const Tensor& x, int root = 0, const ProcessGroup& group = ProcessGroup::world());
/// The ranks' x [n, ...] one after the other: [size * n, ...]. ShapeError for a scalar.
Tensor all_gather(const Tensor& x, const ProcessGroup& group = ProcessGroup::world());
/// x [size * n, ...] is reduced, and rank i gets its rows i * n to (i + 1) * n: [n, ...]. Sum or average. ShapeError for rows
/// that do not divide.
Tensor reduce_scatter(const Tensor& x, ReduceOp op = ReduceOp::sum, const ProcessGroup& group = ProcessGroup::world());
/// Rank i gets the rows i * n to (i + 1) * n of every rank's x [size * n, ...], in the order of the ranks. ShapeError for rows
/// that do not divide.
Tensor all_to_all(const Tensor& x, const ProcessGroup& group = ProcessGroup::world());

/// Sends x to another rank. The result is a zero that stands for what that rank computes from x: add it to the loss, or call its
/// backward(), so that backward comes here and receives the gradient.
Tensor send(const Tensor& x, int to, const ProcessGroup& group = ProcessGroup::world());
/// Receives a tensor from another rank. It requires a gradient, which backward sends back, where the sender's tensor does.
Tensor recv(const Shape& shape, TensorOptions options, int from, const ProcessGroup& group = ProcessGroup::world());

}  // namespace glade
