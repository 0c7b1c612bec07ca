#include <glade/autograd/engine.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <glade/autograd/accumulate.h>
#include <glade/autograd/gradient_matrix.h>
#include <glade/autograd/leaf_watch.h>
#include <glade/autograd/running_pass.h>
#include <glade/autograd/side_stream.h>
#include <glade/core/format.h>
#include <glade/core/interrupt.h>
#include <glade/core/profile.h>

namespace glade::autograd {

namespace {

class Pass;
thread_local Pass* innermost = nullptr;  // pass of this thread
thread_local Node* running = nullptr;

/// Sets the running node and the recording mode for a call of Node::backward.
class RunScope {
 public:
  RunScope(Node* node, bool create_graph) : previous_node_(running), previous_mode_(GradMode::enabled()) {
    running = node;
    GradMode::set_enabled(create_graph);
  }
  ~RunScope() {
    running = previous_node_;
    GradMode::set_enabled(previous_mode_);
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

 private:
  Node* previous_node_;
  bool previous_mode_;
};

/// One backward pass. An operation's node is younger than those of its inputs, so always taking the youngest node that
/// has a gradient waiting visits every node after all that contribute to it.
class Pass {
 public:
  Pass(bool retain_graph, bool create_graph)
      : outer_(std::exchange(innermost, this)), retain_graph_(retain_graph || create_graph), create_graph_(create_graph) {}
  ~Pass() { innermost = outer_; }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  /// Starts at an output; its node may have no other owner (the accumulator of a leaf).
  void start(const Tensor& output, Tensor gradient) {
    Edge edge = gradient_edge(output);
    add(edge, std::move(gradient));
    roots_.push_back(std::move(edge.node));
  }

  /// If leaves have hooks that wait for their gradients: counts the contributions to every node, to know when a leaf has all.
  void watch_leaves() {
    if (PostAccumulateHooks::exist()) start_watch();
  }

  /// Visits only what leads to one of `targets`, and hands their gradients out instead of gathering them at leaves.
  void restrict_to(const Tensors& outputs, const std::vector<Edge>& targets);

  // One function without calls to its parts, which a small backward would spend a tenth of its time on.
  [[gnu::flatten]] void run(const std::vector<Edge>& targets = {}, Tensors* captured = nullptr) {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), older);
      Node* node = heap_.back();
      heap_.pop_back();
      if (node->is_leaf()) join_side_stream();  // leaves come last, but for those with hooks
      else check_interrupt();                   // none of the others has its gradient yet
      auto found = waiting_.find(node);
      Tensors gradients = std::move(found->second);
      waiting_.erase(found);
      if (!node->hooks().empty()) call_hooks(node, gradients);
      if (captured != nullptr) {
        bool ends_here = true;
        for (std::size_t i = 0; i < targets.size(); ++i)
          if (targets[i].node.get() == node) (*captured)[i] = gradients[targets[i].index];
        for (const Edge& edge : node->edges()) ends_here = ends_here && !(edge.node && needed_.contains(edge.node.get()));
        if (ends_here) continue;
      }
      visit(node, std::move(gradients));
    }
    if (watch_) join_side_stream();
  }

  void defer(const Tensor& out, std::function<void(const Tensor&)> f) {
    side_stream_.defer(current_stream(out.device().index), out, std::move(f));
  }

  /// The place of the gradient `like` that goes along the edge, perhaps through nodes that reshape it. Undefined if it has none.
  Tensor take_place(const Edge* edge, const Tensor& like) {
    while (edge->node && edge->node->traits().is_reshape) edge = edge->node->edges().data();
    const Node* const node = edge->node.get();
    if (node == nullptr || !node->traits().columns || (restricted_ && !needed_.contains(edge->node.get()))) return {};
    auto found = find_matrix(node);
    if (found == matrices_.end()) found = matrices_.emplace(found, node, GradientMatrix(*node->traits().columns));
    return found->second.take_place(edge->index, like);
  }

  Tensor gather(const Node& node, const Tensors& gradients) {
    const auto found = find_matrix(&node);
    if (found == matrices_.end()) return {};
    const GradientMatrix matrix = std::move(found->second);
    matrices_.erase(found);
    return matrix.gather(gradients);
  }

 private:
  void add(const Edge& edge, Tensor gradient) {
    if (!edge.node || !gradient.defined() || (restricted_ && !needed_.contains(edge.node.get()))) return;
    const auto [entry, is_new] = waiting_.try_emplace(edge.node.get());
    if (is_new) {
      entry->second.resize(edge.node->num_outputs());
      if (!watch_ || !watch_->watches(edge.node.get())) {
        heap_.push_back(edge.node.get());
        std::push_heap(heap_.begin(), heap_.end(), older);
      }
    }
    Tensor& slot = entry->second[edge.index];
    if (slot.defined()) {
      if (edge.node->is_leaf()) side_stream_.join();
      RunScope scope(running, create_graph_);
      slot = accumulate(slot, gradient);
    } else {
      slot = std::move(gradient);
    }
  }

  using Matrices = std::vector<std::pair<const Node*, GradientMatrix>>;
  Matrices::iterator find_matrix(const Node* node) { return std::ranges::find(matrices_, node, &Matrices::value_type::first); }

  [[gnu::noinline]] void call_hooks(Node* node, Tensors& gradients) {
    const auto hooks = node->hooks();  // one may remove itself or add others
    for (const Node::OutputHook& hook : hooks) {
      Tensor& gradient = gradients[hook.output];
      if (!gradient.defined()) continue;
      RunScope scope(running, create_graph_);
      if (Tensor replaced = hook.hook(gradient); replaced.defined()) replace(gradient, std::move(replaced));
    }
  }

  static void replace(Tensor& gradient, Tensor by) {
    if (!is_gradient_of(by, gradient.shape(), gradient.options()))
      fail<AutogradError>("backward: a hook replaced a gradient, {} {} on {}, by {} {} on {}", gradient.dtype(), gradient.shape(),
                          gradient.device(), by.dtype(), by.shape(), by.device());
    gradient = std::move(by);
  }

  static bool older(const Node* a, const Node* b) { return a->sequence() < b->sequence(); }

  void visit(Node* node, Tensors gradients) {
    if (node->released())
      fail<AutogradError>("backward of {}: what it saved was freed by an earlier backward; pass retain_graph to keep it",
                          node->name());
    const std::uint64_t deferred_before = side_stream_.deferred();
    Tensors results;
    {
      const ProfileRange range(RangeKind::backward, node->name());
      if (node->traits().leaves_gpu_idle) start_side_stream();
      RunScope scope(node, create_graph_);
      results = node->backward(std::move(gradients));
    }
    const auto& edges = node->edges();
    if (results.size() != edges.size())
      fail<AutogradError>("backward of {}: {} gradients for {} inputs", node->name(), results.size(), edges.size());
    if (!retain_graph_) node->release();
    for (std::size_t i = 0; i < edges.size(); ++i) add(edges[i], std::move(results[i]));
    if (watch_ && !node->is_leaf()) watch_after(node, deferred_before);
  }

  [[gnu::noinline]] void start_watch();
  [[gnu::noinline]] void watch_after(Node* node, std::uint64_t deferred_before);
  [[gnu::noinline]] void visit_complete_leaves();
  void visit_leaf(Node* leaf);
  void start_side_stream() {
    side_stream_.start();
    if (watch_) visit_complete_leaves();
  }
  void join_side_stream() {
    if (watch_) start_side_stream();
    side_stream_.join();
  }

  Pass* outer_;
  bool retain_graph_, create_graph_, restricted_ = false;
  SideStream side_stream_;
  Matrices matrices_;                 // of nodes that are still to run
  std::unique_ptr<LeafWatch> watch_;  // null where no leaf is watched
  std::vector<std::shared_ptr<Node>> roots_;
  std::unordered_map<Node*, Tensors> waiting_;
  std::vector<Node*> heap_;
  std::unordered_set<Node*> needed_;
};

void Pass::start_watch() {
  watch_ = LeafWatch::start(heap_);
  if (!watch_) return;
  std::erase_if(heap_, [this](Node* node) { return watch_->watches(node); });
  std::make_heap(heap_.begin(), heap_.end(), older);
  visit_complete_leaves();
}

/// Counts what a node has contributed; what was deferred meanwhile counts as part of all its gradients.
void Pass::watch_after(Node* node, std::uint64_t deferred_before) {
  const std::uint64_t deferred = side_stream_.deferred();
  watch_->count(node, deferred > deferred_before ? deferred : 0, [this](Node* other) { return waiting_.contains(other); });
  visit_complete_leaves();
}

/// Visits the watched leaves that have all contributions and whose deferred work, if there is any, has started. Where the pass
/// does not wait for that work, the leaf gets its gradient on the side stream.
void Pass::visit_complete_leaves() {
  for (Node* leaf : watch_->take_complete(side_stream_.joined())) visit_leaf(leaf);
  const std::vector<Node*> beside = watch_->take_complete(side_stream_.started());
  if (beside.empty()) return;
  side_stream_.run_after([&] {
    for (Node* leaf : beside) visit_leaf(leaf);
  });
}

void Pass::visit_leaf(Node* leaf) {
  Tensors gradients = std::move(waiting_.extract(leaf).mapped());
  call_hooks(leaf, gradients);
  const ProfileRange range(RangeKind::backward, leaf->name());
  RunScope scope(leaf, create_graph_);
  leaf->backward(std::move(gradients));
}

void Pass::restrict_to(const Tensors& outputs, const std::vector<Edge>& targets) {
  std::vector<Edge> edges;  // which keep nodes of leaves
  std::vector<Node*> roots;
  for (const Tensor& y : outputs) roots.push_back(edges.emplace_back(gradient_edge(y)).node.get());
  std::vector<Node*> reachable = reachable_from(roots);
  std::sort(reachable.begin(), reachable.end(), older);
  for (const Edge& target : targets) needed_.insert(target.node.get());
  for (Node* node : reachable)
    for (const Edge& edge : node->edges())
      if (edge.node && needed_.contains(edge.node.get())) needed_.insert(node);
  restricted_ = true;
}

/// Starts at y, output number i; an undefined gradient stands for 1.
void seed(Pass& pass, const char* operation, std::size_t i, const Tensor& y, Tensor gradient) {
  if (!y.defined() || !y.requires_grad())
    fail<AutogradError>("{}: output {} does not require a gradient: nothing was recorded for it", operation, i);
  if (!gradient.defined()) {
    if (y.numel() != 1)
      fail<AutogradError>("{}: output {} has shape {}: give a gradient for outputs of more than one element", operation, i,
                          y.shape());
    gradient = ones_like(y);
  } else if (!is_gradient_of(gradient, y.shape(), y.options())) {
    fail<AutogradError>("{}: output {} is {} {} on {}, its gradient {} {} on {}", operation, i, y.dtype(), y.shape(), y.device(),
                        gradient.dtype(), gradient.shape(), gradient.device());
  }
  pass.start(y, std::move(gradient));
}

void seed(Pass& pass, const char* operation, const Tensors& outputs, const Tensors& gradients) {
  if (!gradients.empty() && gradients.size() != outputs.size())
    fail<ValueError>("{}: {} gradients for {} outputs", operation, gradients.size(), outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i)
    seed(pass, operation, i, outputs[i], gradients.empty() ? Tensor{} : gradients[i]);
}

}  // namespace

Node* running_node() { return running; }

void defer(const Tensor& out, std::function<void(const Tensor&)> f) {
  if (out.is_cpu() || innermost == nullptr) f(out);
  else innermost->defer(out, std::move(f));
}

Tensor empty_gradient_with_gaps(const Node& node, std::size_t i, const Tensor& like) {
  const Tensor place = innermost != nullptr ? innermost->take_place(&node.edges()[i], like) : Tensor();
  return place.defined() ? place : empty_like(like);
}

Tensor gather_gradients(const Node& node, const Tensors& gradients) {
  return innermost != nullptr ? innermost->gather(node, gradients) : Tensor();
}

void backward(const Tensors& outputs, const Tensors& gradients, bool retain_graph, bool create_graph) {
  Pass pass(retain_graph, create_graph);
  seed(pass, "backward", outputs, gradients);
  pass.watch_leaves();
  pass.run();
}

Tensors grad(const Tensors& outputs, const Tensors& inputs, const Tensors& gradients, bool retain_graph, bool create_graph,
             bool allow_unused) {
  std::vector<Edge> targets;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    targets.push_back(gradient_edge(inputs[i]));
    if (!targets.back().node) fail<AutogradError>("grad: input {} does not require a gradient", i);
  }
  Pass pass(retain_graph, create_graph);
  pass.restrict_to(outputs, targets);
  seed(pass, "grad", outputs, gradients);
  Tensors captured(inputs.size());
  pass.run(targets, &captured);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!captured[i].defined() && !allow_unused)
      fail<AutogradError>("grad: the outputs do not depend on input {}; pass allow_unused for an undefined gradient", i);
  return captured;
}

}  // namespace glade::autograd

// Beside the engine, to spare small tensors the lists of the general form.
void glade::Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  autograd::Pass pass(retain_graph, create_graph);
  autograd::seed(pass, "backward", 0, *this, gradient);
  pass.watch_leaves();
  pass.run();
}
