#include <glade/autograd/wanted_gradients.h>

#include <glade/autograd/engine.h>

namespace glade::autograd {

Tensors wanted_gradients(const Node& node, const Tensors& outputs, const Tensors& sources, const Tensors& gradients,
                         bool create_graph) {
  Tensors wanted, out(sources.size());
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!node.needs_grad(i)) continue;
    wanted.push_back(sources[i]);
    places.push_back(i);
  }
  const Tensors found = grad(outputs, wanted, gradients, create_graph, create_graph, true);
  for (std::size_t i = 0; i < places.size(); ++i) out[places[i]] = found[i];
  return out;
}

}  // namespace glade::autograd
