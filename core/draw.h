#pragma once
// Where an operation takes its random numbers from.
#include <glade/core/generator.h>
#include <glade/core/tensor.h>

namespace glade {

/// A place in a generator's sequence.
struct Draw {
  Generator::State state;
  /// In a graph that is being captured: where every replay finds its own place, seed and offset as int64 [2] on the GPU.
  Tensor recorded;

  const Generator::State* of_replay() const {
    return recorded.defined() ? reinterpret_cast<const Generator::State*>(recorded.data<std::int64_t>()) : nullptr;
  }
};

/// Takes `counters` counters for an operation on `device`: now or, in a graph that is being captured, at every replay, from the
/// generator as it is then.
Draw draw_from(Generator& generator, std::uint64_t counters, Device device);

}  // namespace glade
