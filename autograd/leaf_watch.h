#pragma once
// When a leaf's gradient is complete, for leaves with hooks that wait for it.
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include <glade/autograd/node.h>

namespace glade::autograd {

/// These nodes and all below them.
std::vector<Node*> reachable_from(const std::vector<Node*>& nodes);

/// Counts the contributions to every node of one backward pass.
class LeafWatch {
 public:
  /// For a pass that starts at `roots`, which have their gradients. Null if no leaf below has hooks that wait for its gradient.
  static std::unique_ptr<LeafWatch> start(const std::vector<Node*>& roots);

  /// Whether the node is that of a leaf with such hooks.
  bool watches(Node* node) const { return node->is_leaf() && contributions_.at(node).is_watched; }
  /// Counts the contributions of a node that has run, and of nodes below it that will not run, because none has a gradient for
  /// them. `deferred` is the last piece of deferred work among them, 0 if there is none.
  void count(Node* node, std::uint64_t deferred, const std::function<bool(Node*)>& has_gradient);
  /// The leaves that have all contributions and depend on no deferred work after this piece, each once.
  std::vector<Node*> take_complete(std::uint64_t deferred);

 private:
  struct Contributions {
    std::uint64_t missing = 0;   // how many are still to come
    std::uint64_t deferred = 0;  // the last piece of deferred work that computes one of them
    bool is_watched = false;
  };
  std::unordered_map<Node*, Contributions> contributions_;
  std::vector<Node*> complete_;
};

}  // namespace glade::autograd
