#include <glade/autograd/recompute.h>

#include <glade/autograd/wanted_gradients.h>
#include <glade/core/generator.h>

namespace glade::autograd {

namespace {

/// Recording is on, and the default generator is at `place`, while one lives.
class Again {
 public:
  explicit Again(Generator::State place) : recorded_(GradMode::enabled()), place_(default_generator().state()) {
    GradMode::set_enabled(true);
    default_generator().set_state(place);
  }
  ~Again() {
    GradMode::set_enabled(recorded_);
    default_generator().set_state(place_);
  }
  Again(const Again&) = delete;
  Again& operator=(const Again&) = delete;

 private:
  bool recorded_;
  Generator::State place_;
};

}  // namespace

Tensors recompute(std::function<Tensors(const Tensors&)> function, const Tensors& inputs, const Tensors& parameters) {
  const Generator::State place = default_generator().state();
  Tensors outputs;
  {
    NoGradGuard no_grad;
    outputs = function(inputs);
  }
  Tensors sources = inputs;
  sources.insert(sources.end(), parameters.begin(), parameters.end());
  const std::vector<SavedTensor> saved(sources.begin(), sources.end());
  record("recompute", outputs, sources,
         [function = std::move(function), saved, place, count = inputs.size()](const Node& node, const Tensors& gradients) {
           const bool create_graph = GradMode::enabled();
           Tensors given, all_sources;
           for (std::size_t i = 0; i < saved.size(); ++i) {
             Tensor x = saved[i].get();
             // Cut off from the tape, or gradients would go on through it.
             if (i < count && x.defined() && !create_graph) x = x.detach().set_requires_grad(node.needs_grad(i));
             if (i < count) given.push_back(x);
             all_sources.push_back(x);
           }
           Tensors results, weights;
           const Again again(place);
           const Tensors all = function(given);
           for (std::size_t i = 0; i < all.size(); ++i) {
             if (!gradients[i].defined() || !all[i].requires_grad()) continue;
             results.push_back(all[i]);
             weights.push_back(gradients[i]);
           }
           return wanted_gradients(node, results, all_sources, weights, create_graph);
         });
  return outputs;
}

}  // namespace glade::autograd
