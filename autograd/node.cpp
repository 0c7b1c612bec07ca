#include <glade/autograd/node.h>

#include <glade/autograd/accumulate.h>
#include <glade/autograd/running_pass.h>
#include <glade/core/format.h>

namespace glade {

thread_local bool GradMode::enabled_ = true;

TensorImpl::TensorImpl() = default;
TensorImpl::~TensorImpl() = default;

namespace autograd {

std::uint64_t Node::next_sequence() {
  static std::atomic<std::uint64_t> counter{1};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

Node::~Node() {
  // A chain of nodes is taken down by a loop: each destructor hands its edges to the outermost one, or a long tape would
  // overflow the stack.
  static thread_local std::vector<Edge>* pending = nullptr;
  if (pending != nullptr) {
    for (Edge& edge : edges_) pending->push_back(std::move(edge));
    return;
  }
  std::vector<Edge> queue = std::move(edges_);
  pending = &queue;
  while (!queue.empty()) {
    const Edge edge = std::move(queue.back());
    queue.pop_back();
  }
  pending = nullptr;
}

bool is_gradient_of(const Tensor& x, const Shape& shape, const TensorOptions& options) {
  return x.shape() == shape && x.dtype() == options.dtype && x.device() == options.device;
}

Edge gradient_edge(const Tensor& x) {
  if (!x.defined()) return {};
  AutogradSlot* slot = x.impl()->autograd.get();
  if (slot == nullptr || !slot->requires_grad) return {};
  if (slot->grad_fn) return {slot->grad_fn, slot->output_index};
  std::lock_guard lock(slot->mutex);
  auto accumulator = slot->accumulator.lock();
  if (!accumulator) {
    accumulator = std::make_shared<AccumulateGrad>(x);
    accumulator->hooks() = slot->hooks;
    slot->accumulator = accumulator;
  }
  return {std::move(accumulator), 0};
}

bool any_requires_grad(const Tensors& tensors) {
  if (!GradMode::enabled()) return false;
  for (const Tensor& x : tensors)
    if (x.defined() && x.requires_grad()) return true;
  return false;
}

namespace {

void own_output(const std::shared_ptr<Node>& node, Tensor& output, std::uint32_t index) {
  if (!output.defined() || !is_floating(output.dtype())) return;
  auto slot = std::make_unique<AutogradSlot>();
  slot->requires_grad = true;
  slot->grad_fn = node;
  slot->output_index = index;
  output.impl()->autograd = std::move(slot);
}

}  // namespace

void attach(const std::shared_ptr<Node>& node, std::initializer_list<const Tensor*> inputs,
            std::initializer_list<Tensor*> outputs) {
  std::vector<Edge> edges;
  edges.reserve(inputs.size());
  for (const Tensor* x : inputs) edges.push_back(gradient_edge(*x));
  node->set_edges(std::move(edges));
  node->set_num_outputs(static_cast<std::uint32_t>(outputs.size()));
  std::uint32_t index = 0;
  for (Tensor* y : outputs) own_output(node, *y, index++);
}

void attach(const std::shared_ptr<Node>& node, const Tensors& inputs, Tensors& outputs) {
  std::vector<Edge> edges;
  edges.reserve(inputs.size());
  for (const Tensor& x : inputs) edges.push_back(gradient_edge(x));
  node->set_edges(std::move(edges));
  node->set_num_outputs(static_cast<std::uint32_t>(outputs.size()));
  for (std::uint32_t i = 0; i < outputs.size(); ++i) own_output(node, outputs[i], i);
}

SavedTensor::SavedTensor(const Tensor& x) : tensor_(x), version_(x.defined() ? x.storage()->version() : 0) {}

SavedTensor SavedTensor::output(const Tensor& x, std::uint32_t output) {
  SavedTensor saved(x.detach());
  saved.is_output_ = true;
  saved.output_ = output;
  return saved;
}

Tensor SavedTensor::get() const {
  if (!tensor_.defined()) return {};
  Node* running = running_node();
  if (tensor_.storage()->version() != version_)
    fail<AutogradError>(
        "backward of {}: a tensor of shape {} that it needs was changed in place after it was saved (version {} then, {} now)",
        running != nullptr ? running->name() : "an operation", tensor_.shape(), version_, tensor_.storage()->version());
  if (!is_output_ || running == nullptr) return tensor_;
  Tensor x = tensor_.detach();
  own_output(running->shared_from_this(), x, output_);
  return x;
}

}  // namespace autograd
}  // namespace glade
