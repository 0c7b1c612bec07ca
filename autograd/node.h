#pragma once
// The tape. An operation with an input that requires a gradient makes a Node, which knows how to turn the gradients of
// its outputs into those of its inputs, and points to the nodes of the inputs. Operations use `record` below.
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <glade/autograd/grad_mode.h>
#include <glade/core/tensor.h>

namespace glade {

namespace autograd {

/// Where a gradient goes: output `index` of `node` (for a leaf, the node that gathers its gradient). Null: nowhere.
struct Edge {
  std::shared_ptr<Node> node;  ///< Undefined where no gradient is wanted.
  std::uint32_t index = 0;     ///< Which of the node's outputs.
};

/// Takes a gradient; returns the one to go on with, or an undefined tensor to leave it.
using Hook = std::function<Tensor(const Tensor&)>;

/// One matrix in whose rows the gradients of all outputs of a node lie side by side: see autograd/running_pass.h.
struct GradientColumns {
  std::int64_t rows;                  ///< Rows of the matrix: all dimensions of a gradient but the last.
  std::vector<std::int64_t> columns;  ///< the number of columns of each gradient
  TensorOptions options;              ///< Dtype and device of all gradients.
};

/// What an operation declares about its node when it records it.
struct NodeTraits {
  /// The kernels of its backward leave multiprocessors of a GPU idle: the engine starts deferred work right before them.
  bool leaves_gpu_idle = false;
  /// The gradient of its one input is that of its output, reshaped: memory for one is memory for the other.
  bool is_reshape = false;
  /// Its backward wants the gradients of its outputs in one matrix, and takes them by gather_gradients().
  std::shared_ptr<const GradientColumns> columns = nullptr;
};

/// A recorded operation: it keeps what its derivative needs, and knows the nodes of its inputs.
class Node : public std::enable_shared_from_this<Node> {
 public:
  explicit Node(const char* name, NodeTraits&& traits = {})
      : name_(name), sequence_(next_sequence()), traits_(std::move(traits)) {}
  virtual ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Gradients of the outputs (undefined ones count as zero) to gradients of the inputs (undefined: none), in the order
  /// of edges().
  virtual Tensors backward(Tensors gradients) = 0;
  /// Lets go of what was saved for backward.
  virtual void release() {}
  virtual bool released() const { return false; }  ///< Whether release() was called: a second backward is then an AutogradError.

  const char* name() const { return name_; }  ///< The operation's name, for errors and profiles: a literal.
  /// Nodes are numbered in the order of their making, which backward reverses; 0 for leaves.
  std::uint64_t sequence() const { return sequence_; }
  /// Whether it gathers the gradient of a leaf.
  bool is_leaf() const { return sequence_ == 0; }
  /// Where the gradient of each input goes, in the order of the operation's inputs.
  const std::vector<Edge>& edges() const { return edges_; }
  /// Whether the gradient of input i is wanted; backward may leave the others undefined.
  bool needs_grad(std::size_t i) const { return edges_[i].node != nullptr; }
  /// Whether input i is a leaf, whose gradient no other node reads.
  bool leads_to_leaf(std::size_t i) const { return needs_grad(i) && edges_[i].node->is_leaf(); }
  /// How many results the operation has: as many gradients come to backward().
  std::uint32_t num_outputs() const { return num_outputs_; }

  void set_edges(std::vector<Edge> edges) { edges_ = std::move(edges); }  ///< Set once, by attach().
  void set_num_outputs(std::uint32_t n) { num_outputs_ = n; }             ///< Set once, by attach().

  const NodeTraits& traits() const { return traits_; }  ///< What the operation declared about the node.

  /// A hook on the gradient of one output.
  struct OutputHook {
    std::uint32_t output;  ///< Whose gradient the hook sees.
    std::uint64_t key;     ///< For Tensor::remove_hook.
    Hook hook;             ///< Called in the order of registration.
  };
  std::vector<OutputHook>& hooks() { return hooks_; }  ///< Hooks on the gradients of the outputs, called before backward().

 protected:
  /// With a number of its own choice: 0 for the nodes of leaves.
  Node(const char* name, std::uint64_t sequence) : name_(name), sequence_(sequence) {}

 private:
  static std::uint64_t next_sequence();
  const char* name_;
  std::uint64_t sequence_;
  std::vector<Edge> edges_;
  std::uint32_t num_outputs_ = 1;
  std::vector<OutputHook> hooks_;
  NodeTraits traits_;
};

}  // namespace autograd

/// Of a leaf: see autograd/weight_copy.h.
struct WeightCopy {
  Tensor values;              ///< The leaf's values, rounded to 16 bits.
  std::weak_ptr<Storage> of;  ///< whose values they are
  std::uint64_t version = 0;  ///< at which they were
  /// How often that memory had been lent: what was written to it since, nobody counted. None for values that are kept here alone.
  std::optional<std::uint64_t> loans;
};

/// Of a leaf: see autograd/gradient_memory.h.
struct ReservedGradient {
  Tensor values;                ///< The elements set aside; undefined: none.
  std::weak_ptr<Storage> used;  ///< The gradient that is there, or on its way.
};

/// Hooks that are called when a pass has added all of a leaf's gradient to its grad().
class PostAccumulateHooks {
 public:
  using Hook = std::function<void(const Tensor&)>;  ///< Is given the leaf, whose grad() is then final.
  PostAccumulateHooks() = default;
  ~PostAccumulateHooks() {
    if (!hooks_.empty()) count_ -= static_cast<std::int64_t>(hooks_.size());
  }
  PostAccumulateHooks(const PostAccumulateHooks&) = delete;
  PostAccumulateHooks& operator=(const PostAccumulateHooks&) = delete;

  bool empty() const { return hooks_.empty(); }  ///< Whether there are none.
  void add(std::uint64_t key, Hook hook);        ///< `key` is for remove(); any number that no other hook here has.
  void remove(std::uint64_t key);                ///< Does nothing for a key that is not there.
  void call(const Tensor& leaf) const;           ///< Calls all, in the order of registration.
  /// Whether a leaf has any.
  static bool exist() { return count_.load(std::memory_order_relaxed) > 0; }

 private:
  static std::atomic<std::int64_t> count_;  // of all leaves
  std::vector<std::pair<std::uint64_t, Hook>> hooks_;
};

/// See core/tensor.h.
struct AutogradSlot {
  bool requires_grad = false;                     ///< Of a leaf: what set_requires_grad() said.
  Tensor grad;                                    ///< Of a leaf, or after retain_grad(): what backward gathered.
  std::shared_ptr<autograd::Node> grad_fn;        ///< the operation that made the tensor; null for leaves
  std::uint32_t output_index = 0;                 ///< Which of grad_fn's outputs the tensor is.
  std::weak_ptr<autograd::Node> accumulator;      ///< of a leaf
  std::mutex mutex;                               ///< guards it and the last two: threads may share leaves
  std::vector<autograd::Node::OutputHook> hooks;  ///< of a leaf, given to its accumulator
  PostAccumulateHooks post_accumulate_hooks;      ///< of a leaf
  ReservedGradient reserved;                      ///< of a leaf
  WeightCopy copy;                                ///< The 16-bit copy of a float32 leaf that products read.
};

namespace autograd {

/// Whether x is of that shape, dtype and device, as the gradient of such a tensor has to be.
bool is_gradient_of(const Tensor& x, const Shape& shape, const TensorOptions& options);

/// Where the gradient of x goes; a null edge where it needs none.
Edge gradient_edge(const Tensor& x);

/// Whether an operation on these tensors is to be recorded.
inline bool any_requires_grad(std::initializer_list<const Tensor*> tensors) {
  if (!GradMode::enabled()) return false;
  for (const Tensor* x : tensors)
    if (x->defined() && x->requires_grad()) return true;
  return false;
}
bool any_requires_grad(const Tensors& tensors);

/// A tensor kept for backward. get() gives it back, with its place on the tape, or throws AutogradError where it was
/// changed in place since.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// An input of the node or a value of its own that is not one of its outputs.
  SavedTensor(const Tensor& x);  // NOLINT(google-explicit-constructor): captures read as `x = SavedTensor(x)` or by init
  /// For a tensor that the node itself makes, output number `output`: it must not own its own node.
  static SavedTensor output(const Tensor& x, std::uint32_t output = 0);
  /// Inside backward only (an own output finds its node there). Undefined where an undefined tensor was saved.
  Tensor get() const;

 private:
  Tensor tensor_;
  std::uint64_t version_ = 0;
  bool is_output_ = false;
  std::uint32_t output_ = 0;
};

/// A node whose backward is a function object: F(const Node&, const Tensor& gradient) -> Tensors for one output, or
/// F(const Node&, const Tensors& gradients) -> Tensors for several.
template <class F>
class FunctionNode final : public Node {
 public:
  FunctionNode(const char* name, F f, NodeTraits&& traits) : Node(name, std::move(traits)), function_(std::move(f)) {}
  Tensors backward(Tensors gradients) override {
    if constexpr (std::is_invocable_v<F&, const Node&, const Tensor&>) return (*function_)(*this, gradients[0]);
    else return (*function_)(*this, gradients);
  }
  void release() override { function_.reset(); }
  bool released() const override { return !function_.has_value(); }

 private:
  std::optional<F> function_;
};

/// Makes `node` the maker of `outputs` (in order) with the inputs' gradient edges.
void attach(const std::shared_ptr<Node>& node, std::initializer_list<const Tensor*> inputs,
            std::initializer_list<Tensor*> outputs);
void attach(const std::shared_ptr<Node>& node, const Tensors& inputs, Tensors& outputs);

/// Records that `output` was computed from `inputs`; does nothing where none of them requires a gradient or recording
/// is off. `backward` is called with the node and the output's gradient and returns one gradient per input, each of the
/// input's shape and dtype; it may skip those for which node.needs_grad(i) is false. To be differentiable twice it
/// computes with operations on tensors alone; where GradMode is off there, it may use fused kernels instead, and what
/// autograd/running_pass.h offers.
///
///     Tensor exp(const Tensor& x) {
///       Tensor y = ...;                                     // computed without recording
///       autograd::record("exp", y, {&x}, [y = SavedTensor::output(y)](const Node&, const Tensor& grad) {
///         return Tensors{grad * y.get()};
///       });
///       return y;
///     }
template <class F>
void record(const char* name, Tensor& output, std::initializer_list<const Tensor*> inputs, F&& backward,
            NodeTraits&& traits = {}) {
  if (!any_requires_grad(inputs)) return;
  attach(std::make_shared<FunctionNode<std::decay_t<F>>>(name, std::forward<F>(backward), std::move(traits)), inputs, {&output});
}
/// The same for several outputs (backward takes `const Tensors&`; the gradient of an output that was not used is
/// undefined).
template <class F>
void record(const char* name, std::initializer_list<Tensor*> outputs, std::initializer_list<const Tensor*> inputs, F&& backward,
            NodeTraits&& traits = {}) {
  if (!any_requires_grad(inputs)) return;
  attach(std::make_shared<FunctionNode<std::decay_t<F>>>(name, std::forward<F>(backward), std::move(traits)), inputs, outputs);
}
/// The same for any number of inputs and outputs.
template <class F>
void record(const char* name, Tensors& outputs, const Tensors& inputs, F&& backward, NodeTraits&& traits = {}) {
  if (!any_requires_grad(inputs)) return;
  attach(std::make_shared<FunctionNode<std::decay_t<F>>>(name, std::forward<F>(backward), std::move(traits)), inputs, outputs);
}

}  // namespace autograd
}  // namespace glade
