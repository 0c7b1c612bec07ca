// The gated recurrence over a grid of all that a call can vary, against the reference: not every combination, but every pair
// of values of two of them at least once.
#include <array>
#include <random>
#include <set>

#include "ops/linear_attention_cases.h"

using namespace glade;
using namespace glade::testing_support;

namespace {

struct Sizes {
  std::array<std::int64_t, 9> heads;
  std::array<std::int64_t, 6> lengths;
};
constexpr Sizes kSizes{{1, 16, 32, 60, 64, 100, 128, 256, 512}, {1, 2, 63, 64, 65, 1000}};
constexpr Sizes kFewTokens{{1, 16, 32, 60, 100, 128, 200, 272, 512}, {1, 3, 8, 9, 20, 32}};  // a kernel of their own on CUDA
constexpr DType kDTypes[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16};
constexpr double kGates[] = {-0.03, -0.5, -4};

/// What varies, and in how many ways. A point of the grid has one number for each.
enum Factor { head_gate, gamma_gate, key_gate, value_gate, strength, direction, layout, state, group, K, V, T, dtype, factors };
constexpr std::array<int, factors> kWays = {3, 3, 2, 2, 3, 2, 3, 3, 3, 9, 9, 6, 4};
using Point = std::array<int, factors>;

Spec spec(const Point& p, const Sizes& sizes = kSizes) {
  Spec s;
  const std::int64_t sharing = std::int64_t{1} << p[group], length = sizes.lengths[static_cast<std::size_t>(p[T])];
  s.B = p[layout] == 0 ? 2 : 1;
  s.T = length;
  s.H = std::max<std::int64_t>(sharing, 2);
  s.Hkv = s.H / sharing;
  s.K = sizes.heads[static_cast<std::size_t>(p[K])];
  s.V = sizes.heads[static_cast<std::size_t>(p[V])];
  s.gates = std::string(std::array{"", "g", "c"}[static_cast<std::size_t>(p[head_gate])]) +
            std::array{"", "m", "n"}[static_cast<std::size_t>(p[gamma_gate])] + (p[key_gate] == 1 ? "k" : "") +
            (p[value_gate] == 1 ? "v" : "");
  s.gate = kGates[p[strength]];
  s.state = p[state] == 0 ? 0 : p[state] + 2;
  s.reverse = p[direction] == 1;
  if (p[layout] > 0) s.starts = {0, length / 3, length / 3, length};
  s.flat = p[layout] == 2;
  return s;
}

/// Steps of elements of the state: what the reference's time is proportional to.
std::int64_t work(const Spec& s) { return s.B * s.T * s.H * s.K * s.V; }

/// Points that together hold every pair of values: each the best of some random ones that are not too much work.
std::vector<Point> covering_points(const std::array<int, factors>& ways) {
  constexpr std::int64_t kMostWork = 1'500'000;
  std::set<std::array<int, 4>> open;
  for (int a = 0; a < factors; ++a)
    for (int b = a + 1; b < factors; ++b)
      for (int i = 0; i < ways[static_cast<std::size_t>(a)]; ++i)
        for (int j = 0; j < ways[static_cast<std::size_t>(b)]; ++j) open.insert({a, i, b, j});
  std::mt19937 engine(1);
  std::vector<Point> points;
  while (!open.empty()) {
    const std::array<int, 4> wanted = *open.begin();
    Point best{};
    std::size_t most = 0;
    for (int candidate = 0; candidate < 100;) {
      Point p;
      for (std::size_t f = 0; f < factors; ++f) p[f] = static_cast<int>(engine() % static_cast<unsigned>(ways[f]));
      p[static_cast<std::size_t>(wanted[0])] = wanted[1], p[static_cast<std::size_t>(wanted[2])] = wanted[3];
      if (work(spec(p)) > kMostWork) continue;
      ++candidate;
      std::size_t count = 0;
      for (int a = 0; a < factors; ++a)
        for (int b = a + 1; b < factors; ++b)
          count += open.count({a, p[static_cast<std::size_t>(a)], b, p[static_cast<std::size_t>(b)]});
      if (count > most) most = count, best = p;
    }
    for (int a = 0; a < factors; ++a)
      for (int b = a + 1; b < factors; ++b)
        open.erase({a, best[static_cast<std::size_t>(a)], b, best[static_cast<std::size_t>(b)]});
    points.push_back(best);
  }
  return points;
}

class RecurrenceGrid : public DeviceTest {};
GLADE_DEVICE_TESTS(RecurrenceGrid);

TEST_P(RecurrenceGrid, EveryPair) {
  const std::vector<Point> points = covering_points(kWays);
  RecordProperty("points", static_cast<int>(points.size()));
  for (const Point& p : points) expect_matches(spec(p), device(), kDTypes[p[dtype]]);
}

TEST_P(RecurrenceGrid, EveryPairInChunks) {
  // What the chunk form takes in all sizes: no gv, and on CUDA no float64.
  std::array<int, factors> ways = kWays;
  ways[value_gate] = 1;
  if (device().is_cuda()) ways[dtype] = 3;
  for (const Point& p : covering_points(ways)) {
    RecurrenceArguments x = make(spec(p), device(), kDTypes[kWays[dtype] - 1 - p[dtype]]);
    expect_matches(x, spec(p).str(), true, true, {Algorithm::chunk});
  }
}

TEST_P(RecurrenceGrid, EveryPairOfFewTokens) {
  int number = 0;
  for (const Point& p : covering_points(kWays)) {
    RecurrenceArguments x = make(spec(p, kFewTokens), device(), kDTypes[p[dtype]]);
    x.options.checkpoint_interval = 1;
    const bool vanishes = kGates[p[strength]] < -1;     // what the final state passes on to the initial one
    const int gradients = vanishes ? 2 : number++ % 3;  // of the output, the final state, or both
    expect_matches(x, spec(p, kFewTokens).str(), gradients != 1, gradients != 0, {Algorithm::recurrent});
  }
}

}  // namespace
