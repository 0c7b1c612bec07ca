#include <glade/autograd/leaf_watch.h>

#include <algorithm>
#include <unordered_set>

#include <glade/autograd/accumulate.h>

namespace glade::autograd {

std::vector<Node*> reachable_from(const std::vector<Node*>& nodes) {
  std::vector<Node*> reachable;
  std::unordered_set<Node*> seen;
  auto visit_once = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) reachable.push_back(node);
  };
  for (Node* node : nodes) visit_once(node);
  for (std::size_t i = 0; i < reachable.size(); ++i)
    for (const Edge& edge : reachable[i]->edges()) visit_once(edge.node.get());
  return reachable;
}

std::unique_ptr<LeafWatch> LeafWatch::start(const std::vector<Node*>& roots) {
  auto watch = std::make_unique<LeafWatch>();
  bool found = false;
  for (Node* node : reachable_from(roots)) {
    Contributions& of = watch->contributions_[node];
    of.is_watched = node->is_leaf() && static_cast<AccumulateGrad*>(node)->has_post_accumulate_hooks();
    found = found || of.is_watched;
    for (const Edge& edge : node->edges())
      if (edge.node) ++watch->contributions_[edge.node.get()].missing;
  }
  if (!found) return nullptr;
  for (Node* root : roots)
    if (watch->watches(root) && watch->contributions_.at(root).missing == 0) watch->complete_.push_back(root);
  return watch;
}

void LeafWatch::count(Node* node, std::uint64_t deferred, const std::function<bool(Node*)>& has_gradient) {
  std::vector<Node*> done{node};
  while (!done.empty()) {
    const Node* const from = done.back();
    done.pop_back();
    for (const Edge& edge : from->edges()) {
      if (!edge.node) continue;
      Contributions& of = contributions_.at(edge.node.get());
      if (from == node) of.deferred = std::max(of.deferred, deferred);
      if (--of.missing > 0) continue;
      if (!has_gradient(edge.node.get())) done.push_back(edge.node.get());
      else if (of.is_watched) complete_.push_back(edge.node.get());
    }
  }
}

std::vector<Node*> LeafWatch::take_complete(std::uint64_t deferred) {
  std::vector<Node*> taken, later;
  for (Node* leaf : complete_) (contributions_.at(leaf).deferred <= deferred ? taken : later).push_back(leaf);
  complete_ = std::move(later);
  return taken;
}

}  // namespace glade::autograd
