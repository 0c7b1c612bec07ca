#include <glade/core/draw.h>

#include <glade/core/graph.h>

namespace glade {

Draw draw_from(Generator& generator, std::uint64_t counters, Device device) {
  if (!device.is_cuda() || !cuda::is_capturing()) return {generator.reserve(counters), {}};
  const Tensor place = empty({2}, {DType::int64, device});
  cuda::before_replay([&generator, counters, place] {
    const Generator::State state = generator.reserve(counters);
    fill_data(place.as_strided({1}, {1}, 0), static_cast<std::int64_t>(state.seed));
    fill_data(place.as_strided({1}, {1}, 1), static_cast<std::int64_t>(state.offset));
  });
  return {{}, place};
}

}  // namespace glade
