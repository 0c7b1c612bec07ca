// Ranges of work and what profiles make of them.
#include <glade/core/graph.h>
#include <glade/core/memory.h>
#include <glade/core/profile.h>
#include <glade/nn/models/causal_lm.h>
#include <glade/ops/elementwise/elementwise.h>
#include <glade/ops/matmul/matmul.h>
#include <glade/ops/reduce/reduce.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "support/testing.h"

namespace glade {
namespace {

using namespace testing_support;

using Names = std::vector<std::pair<std::string, int>>;

Names names(const Profile& profile) {
  Names result;
  for (const ProfileEvent& event : profile.events) result.emplace_back(event.name, event.depth);
  return result;
}

TEST(Profile, RangesNest) {
  { const ProfileRange before(RangeKind::phase, "before"); }
  start_profile();
  {
    const ProfileRange outer(RangeKind::phase, "outer");
    { const ProfileRange inner(RangeKind::layer, "inner", 3); }
    const ProfileRange second(RangeKind::backward, "second");
    const ProfileRange third(RangeKind::operation, "third");
  }
  { const ProfileRange last(RangeKind::phase, "last"); }
  const Profile profile = stop_profile();
  { const ProfileRange after(RangeKind::phase, "after"); }
  EXPECT_EQ(names(profile), (Names{{"outer", 0}, {"inner.3", 1}, {"second backward", 1}, {"third", 2}, {"last", 0}}));
  const auto& events = profile.events;
  const auto inside = [](const ProfileEvent& a, const ProfileEvent& b) {
    return a.begin >= b.begin && a.begin + a.duration <= b.begin + b.duration;
  };
  EXPECT_TRUE(inside(events[1], events[0]) && inside(events[2], events[0]) && inside(events[3], events[2]));
  EXPECT_GE(events[2].begin, events[1].begin + events[1].duration);
  for (const ProfileEvent& event : events)
    EXPECT_TRUE(event.begin >= 0 && event.duration >= 0 && event.thread == 0 && !event.on_device);
}

TEST(Profile, MeasuresTime) {
  start_profile();
  {
    const ProfileRange range(RangeKind::phase, "sleep");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  const Profile profile = stop_profile();
  EXPECT_GE(profile.events.at(0).duration, 20e3);
  EXPECT_LT(profile.events.at(0).duration, 10e6);
}

TEST(Profile, EveryThreadHasItsOwnRanges) {
  start_profile();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int j = 0; j < 100; ++j) {
        const ProfileRange outer(RangeKind::phase, "outer");
        const ProfileRange inner(RangeKind::phase, "inner");
      }
    });
  for (std::thread& thread : threads) thread.join();
  const Profile profile = stop_profile();
  ASSERT_EQ(profile.events.size(), 800u);
  for (std::size_t i = 0; i < 800; ++i) {
    EXPECT_EQ(profile.events[i].depth, static_cast<int>(i % 2));
    EXPECT_EQ(profile.events[i].thread, profile.events[i / 200 * 200].thread);
    EXPECT_NE(profile.events[i].thread, 0);
  }
}

TEST(Profile, RangesAroundItsEndsAreLeftOut) {
  std::optional<ProfileRange> early(std::in_place, RangeKind::phase, "early"), late;
  start_profile();
  early.reset();
  { const ProfileRange whole(RangeKind::phase, "whole"); }
  late.emplace(RangeKind::phase, "late");
  EXPECT_EQ(names(stop_profile()), (Names{{"whole", 0}}));
  start_profile();
  late.reset();
  { const ProfileRange next(RangeKind::phase, "next"); }
  EXPECT_EQ(names(stop_profile()), (Names{{"next", 0}}));
}

TEST(Profile, TraceIsJsonForAnyName) {
  Profile profile;
  profile.events = {{"a \"name\"\n", RangeKind::phase, 0, 0, 0.5, 3000}, {"\xff", RangeKind::backward, 2, 1, 1, 2}};
  EXPECT_EQ(profile.chrome_trace(), R"({"displayTimeUnit":"ms","traceEvents":[
{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"host"}},
{"name":"a \"name\"\n","cat":"phase","ph":"X","pid":0,"tid":0,"ts":0.5,"dur":3000},
{"name":"�","cat":"backward","ph":"X","pid":0,"tid":2,"ts":1,"dur":2}
]}
)");
}

TEST(Profile, RefusesMisuse) {
  EXPECT_TRUE(throws_with<ValueError>([] { stop_profile(); }, "no profile is being recorded"));
  start_profile();
  EXPECT_TRUE(throws_with<ValueError>([] { start_profile(); }, "a profile is being recorded"));
  EXPECT_TRUE(throws_with<ValueError>([profile = stop_profile()] { profile.table(0); }, "steps is 0"));
  if (!cuda::is_available()) {
    EXPECT_TRUE(throws_with<DeviceError>([] { start_profile(kCUDA); }, ""));
  }
  EXPECT_TRUE(throws_with<ValueError>([] { stop_profile(); }, "no profile"));  // nothing was begun
}

TEST(Profile, TableAddsUp) {
  Profile profile;
  profile.events = {{"forward", RangeKind::phase, 0, 0, 0, 3000},     {"gemm", RangeKind::operation, 0, 1, 100, 2000},
                    {"backward", RangeKind::phase, 0, 0, 4000, 6000}, {"linear backward", RangeKind::backward, 0, 1, 4000, 5000},
                    {"gemm", RangeKind::operation, 0, 2, 4100, 4000}, {"other thread", RangeKind::phase, 1, 0, 0, 9000}};
  EXPECT_EQ(profile.table(2),
            "a step                                        calls    host ms   share\n"
            "  forward                                       0.5      1.500   33.3%\n"
            "  backward                                      0.5      3.000   66.7%\n"
            "by own time                                   calls    host ms   share\n"
            "  gemm                                          1.0      3.000   66.7%\n"
            "  backward                                      0.5      0.500   11.1%\n"
            "  forward                                       0.5      0.500   11.1%\n"
            "  linear backward                               0.5      0.500   11.1%\n");
}

class ProfileTest : public DeviceTest {};

// Operations and layers of a training step have ranges, forward and backward.
TEST_P(ProfileTest, OfATrainingStep) {
  const auto model = nn::models::make_causal_lm(
      R"({"model_type": "gla", "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2})");
  model->to(device());
  const Tensor ids = Tensor::from_vector(std::vector<std::int64_t>(30, 7), {2, 15}, device());
  model->loss(ids, ids).backward();
  start_profile(device());
  model->loss(ids, ids).backward();
  const Profile profile = stop_profile();
  const auto count = [&](const std::string& name) { return std::ranges::count(profile.events, name, &ProfileEvent::name); };
  EXPECT_EQ(count("layers.0"), 1);
  EXPECT_EQ(count("layers.1"), 1);
  EXPECT_EQ(count("GatedLinearAttention"), 2);
  EXPECT_EQ(count("GatedMLP"), 2);
  EXPECT_GE(count("gemm"), 8);
  EXPECT_TRUE(std::ranges::any_of(profile.events, [](const ProfileEvent& e) { return e.kind == RangeKind::backward; }));
  const auto layer = std::ranges::find(profile.events, std::string("layers.0"), &ProfileEvent::name);
  const auto attention = std::ranges::find(profile.events, std::string("GatedLinearAttention"), &ProfileEvent::name);
  EXPECT_EQ(attention->depth, layer->depth + 1);
  for (const ProfileEvent& event : profile.events) {
    EXPECT_EQ(event.on_device, device().is_cuda());
    if (!event.on_device) continue;
    EXPECT_GE(event.device_duration, 0);
    EXPECT_GE(event.device_begin, 0);
  }
  if (device().is_cuda()) {  // ranges on the GPU nest as on the host, to the events' resolution
    const double end = attention->device_begin + attention->device_duration;
    EXPECT_GE(attention->device_begin, layer->device_begin - 1);
    EXPECT_LE(end, layer->device_begin + layer->device_duration + 1);
  }
}

// A capture holds no marks of a profile, and can be replayed while one is recorded.
TEST_P(ProfileTest, CapturesAreLeftAlone) {
  if (device().is_cpu()) GTEST_SKIP() << "there are no graphs on the CPU";
  const Tensor x = ones({8, 8}, {DType::float32, device()});
  matmul(x, x);
  start_profile(device());
  Tensor y;
  cuda::Graph graph;
  graph.capture([&] { y = matmul(x, x); });
  graph.replay();
  const Profile profile = stop_profile();
  ASSERT_EQ(std::ranges::count(profile.events, std::string("gemm"), &ProfileEvent::name), 1);
  EXPECT_FALSE(std::ranges::find(profile.events, std::string("gemm"), &ProfileEvent::name)->on_device);
  EXPECT_EQ(y.to_vector<float>()[0], 8);
}

TEST_P(ProfileTest, MemorySummary) {
  if (device().is_cpu()) {
    if (!cuda::is_available()) {
      EXPECT_TRUE(throws_with<DeviceError>([] { cuda::memory_summary(); }, ""));
    }
    return;
  }
  const Tensor x = zeros({1 << 20}, {DType::float32, device()}), y = zeros({1 << 18}, {DType::float32, device()});
  const std::string text = cuda::memory_summary(0, {{"large", {x, x.as_strided({4}, {1}, 0), Tensor()}}, {"small", {y}}});
  for (const char* part : {"cuda:0 memory, MiB\n", "    large                              4.0\n",
                           "    small                              1.0\n", "    other", "held by the pool", "free on the device"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
}
GLADE_DEVICE_TESTS(ProfileTest);

}  // namespace
}  // namespace glade
