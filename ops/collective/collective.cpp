#include <glade/ops/collective/collective.h>

#include <glade/autograd/node.h>
#include <glade/core/format.h>
#include <glade/ops/elementwise/elementwise.h>

// Derivatives call these functions again, so that gradients of gradients are there too.
namespace glade {
namespace {

Shape with_rows(const Tensor& x, std::int64_t rows) {
  Shape shape = x.shape();
  shape[0] = rows;
  return shape;
}

/// The rows of x that are one rank's.
std::int64_t rows_of_rank(const char* operation, const Tensor& x, const ProcessGroup& group) {
  if (x.ndim() == 0 || x.size(0) % group.size() != 0)
    fail<ShapeError>("{}: {} cannot be cut into {} pieces of rows", operation, x.shape(), group.size());
  return x.size(0) / group.size();
}

/// A copy that is ours alone.
Tensor copy_of(const Tensor& x) {
  Tensor copy = empty(x.shape(), x.options());
  copy_data(copy, x);
  return copy;
}

void check_has_gradient(const char* operation, const Tensor& x, ReduceOp op) {
  if ((op == ReduceOp::max || op == ReduceOp::min) && autograd::any_requires_grad({&x}))
    fail<AutogradError>("{}: max and min have no gradient, but the tensor requires one", operation);
}

}  // namespace

Tensor all_reduce(const Tensor& x, ReduceOp op, const ProcessGroup& group) {
  check_has_gradient("all_reduce", x, op);
  Tensor y = copy_of(x);
  group.all_reduce({y}, op).wait();
  autograd::record("all_reduce", y, {&x}, [op, group](const autograd::Node&, const Tensor& gradient) {
    return Tensors{all_reduce(gradient, op, group)};
  });
  return y;
}

Tensor broadcast(const Tensor& x, int root, const ProcessGroup& group) {
  Tensor y = copy_of(x);
  group.broadcast(Tensors{y}, root).wait();
  autograd::record("broadcast", y, {&x}, [root, group](const autograd::Node&, const Tensor& gradient) {
    const Tensor sum = all_reduce(gradient, ReduceOp::sum, group);
    return Tensors{group.rank() == root ? sum : zeros_like(sum)};
  });
  return y;
}

Tensor all_gather(const Tensor& x, const ProcessGroup& group) {
  if (x.ndim() == 0) fail<ShapeError>("all_gather: a scalar has no rows");
  Tensor y = empty(with_rows(x, x.size(0) * group.size()), x.options());
  group.all_gather(y, contiguous_data(x)).wait();
  autograd::record("all_gather", y, {&x}, [group](const autograd::Node&, const Tensor& gradient) {
    return Tensors{reduce_scatter(gradient, ReduceOp::sum, group)};
  });
  return y;
}

Tensor reduce_scatter(const Tensor& x, ReduceOp op, const ProcessGroup& group) {
  check_has_gradient("reduce_scatter", x, op);
  Tensor y = empty(with_rows(x, rows_of_rank("reduce_scatter", x, group)), x.options());
  group.reduce_scatter(y, contiguous_data(x), op).wait();
  autograd::record("reduce_scatter", y, {&x}, [op, group](const autograd::Node&, const Tensor& gradient) {
    const Tensor all = all_gather(gradient, group);
    return Tensors{op == ReduceOp::average ? all / static_cast<double>(group.size()) : all};
  });
  return y;
}

Tensor all_to_all(const Tensor& x, const ProcessGroup& group) {
  rows_of_rank("all_to_all", x, group);
  Tensor y = empty(x.shape(), x.options());
  group.all_to_all(y, contiguous_data(x)).wait();
  autograd::record("all_to_all", y, {&x},
                   [group](const autograd::Node&, const Tensor& gradient) { return Tensors{all_to_all(gradient, group)}; });
  return y;
}

Tensor send(const Tensor& x, int to, const ProcessGroup& group) {
  const bool wants_gradient = autograd::any_requires_grad({&x});
  group.send(contiguous_data(x), to, wants_gradient ? 1 : 0).wait();
  Tensor y = zeros({}, x.options());
  autograd::record("send", y, {&x}, [to, group, shape = x.shape()](const autograd::Node&, const Tensor& gradient) {
    return Tensors{recv(shape, gradient.options(), to, group)};
  });
  return y;
}

Tensor recv(const Shape& shape, TensorOptions options, int from, const ProcessGroup& group) {
  Tensor y = empty(shape, options);
  auto [work, wants_gradient] = group.recv(y, from);
  work.wait();
  if (wants_gradient == 0) return y;
  Tensor sender = zeros({}, options);  // stands for what the sender's tensor comes from
  sender.set_requires_grad();
  autograd::record("recv", y, {&sender}, [from, group](const autograd::Node&, const Tensor& gradient) {
    send(gradient, from, group);
    return Tensors{zeros({}, gradient.options())};
  });
  return y;
}

}  // namespace glade
