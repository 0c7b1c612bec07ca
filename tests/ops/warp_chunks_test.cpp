// Small heads on the tensor cores, in chunks of 16 tokens, on GPUs.
#include <glade/ops/linear_attention/plan.h>
#include <glade/ops/shape/shape.h>

#include "ops/linear_attention_cases.h"

namespace glade {
namespace {

using namespace testing_support;

using WarpChunks = testing::Test;

void check(RecurrenceArguments& x, const std::string& what) { expect_chunks_match(x, what, AttentionKernels::warp_chunks); }
void check(const Spec& s, DType dtype = DType::bfloat16) {
  RecurrenceArguments x = make(s, gpu_or_cpu(), dtype);
  check(x, s.str());
}

/// A call whose groups, initial state and direction change with i.
Spec varied(int i, std::int64_t T, std::int64_t K, std::int64_t V, const char* gates) {
  return {.T = T,
          .Hkv = 1 + i % 2,
          .K = K,
          .V = V,
          .gates = gates,
          .state = i % 5 > 2 ? i % 5 : 0,
          .reverse = i % 3 == 0,
          .interval = 32};
}

TEST_F(WarpChunks, MatchesTheReferenceWithGatesOfValues) {
  int i = 0;
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {16, 16}, {8, 24}, {32, 64}, {30, 34}, {64, 64}, {48, 16}, {128, 128}, {100, 72}, {2, 128}})
    for (const char* gates : {"v", "kv", "gv", "nckv"})
      for (const std::int64_t T : {1, 17, 33, 70}) {
        ++i;
        Spec s = varied(i, T, K, V, gates);
        s.float32_gates = i % 4 == 0;
        if (K > 64 && V > 64 && T > 32) s.reverse = true;  // others have passes of their own on Hopper GPUs
        check(s, i % 5 < 2 ? DType::float16 : i % 5 < 4 ? DType::bfloat16 : DType::float32);
      }
}

TEST_F(WarpChunks, MatchesTheReferenceWithManyHeads) {
  for (const char* gates : {"", "k", "c"})
    for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{16, 16}, {8, 10}, {32, 24}}) {
      if (*gates != 0 && K > 16) continue;  // other kernels are faster
      for (const DType dtype : {DType::bfloat16, DType::float16})
        for (const bool reverse : {false, true})
          check({.B = 16, .T = 75, .H = 24, .Hkv = 12, .K = K, .V = V, .gates = gates, .state = 4, .reverse = reverse}, dtype);
    }
}

TEST_F(WarpChunks, MatchesTheReferenceInFloat32) {
  int i = 0;
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{16, 16}, {8, 24}, {32, 32}, {30, 18}})
    for (const char* gates : {"", "n", "g", "k", "gk", "c"})
      for (const std::int64_t T : {17, 33, 70, 200}) {
        ++i;
        Spec s = varied(i, T, K, V, gates);
        s.gate = i % 2 == 0 ? -0.3 : -2;
        check(s, DType::float32);
      }
}

TEST_F(WarpChunks, MatchesTheReferenceInFloat32WithLargeHeads) {
  for (const char* gates : {"", "n", "g", "k", "gk"})  // others are faster where heads are few
    check({.B = 70, .T = 75, .H = 2, .Hkv = 1, .K = 64, .V = 40, .gates = gates, .state = 4}, DType::float32);
  for (const char* gates : {"g", "k"})
    check({.B = 110, .T = 140, .H = 2, .K = 72, .V = 66, .gates = gates, .reverse = *gates == 'g'}, DType::float32);
  check({.B = 110, .T = 20, .H = 2, .K = 128, .V = 128, .gates = "k", .state = 3}, DType::float32);
}

/// Forward in float32, with more channels of values than the backward pass sums over.
TEST_F(WarpChunks, ManyValuesForward) {
  for (const Spec& s :
       {Spec{.T = 75, .K = 16, .V = 512, .gates = "k", .state = 4}, Spec{.T = 70, .K = 30, .V = 130, .gates = "g"},
        Spec{.B = 1, .T = 1100, .K = 32, .V = 200, .gates = "n", .state = 4, .reverse = true}}) {
    RecurrenceArguments x = make(s, gpu_or_cpu(), DType::float32);
    x.options.algorithm = Algorithm::chunk;
    EXPECT_EQ(plan_of(x).forward.kernels, AttentionKernels::warp_chunks) << s.str();
    if (!is_planned_alone(x)) expect_matches(x, s.str(), true, true, {Algorithm::chunk});
  }
}

/// Backward in float32, with parts of the values as heads of their own.
TEST_F(WarpChunks, ManyValues) {
  const auto check_parts = [](const Spec& s, int parts) {
    RecurrenceArguments x = make(s, gpu_or_cpu(), DType::float32);
    const AttentionPlan made = plan_in_chunks(x);
    ASSERT_EQ(made.backward.kernels, AttentionKernels::warp_chunks) << s.str() << '\n' << made.to_string();
    ASSERT_EQ(made.backward.value_parts, parts) << s.str();
    if (!is_planned_alone(x)) expect_matches(x, s.str(), true, true, {Algorithm::chunk});
  };
  for (const char* gates : {"", "k"}) {
    Spec s{.B = 6, .T = 450, .H = 4, .Hkv = 4, .K = 30, .V = 264, .gates = gates, .state = 3, .gate = -0.1};
    check_parts(s, 3);
    s.K = 16, s.V = 512, s.state = 4, s.reverse = true;
    s.B = 1, s.T = 2700, s.starts = {0, 0, 5, 500, 521, 900, 1300, 1700, 2100, 2500, 2700};
    check_parts(s, 4);
  }
  for (const char* gates : {"g", "gk", "m"})
    check_parts({.B = 35, .T = 120, .H = 4, .Hkv = 4, .K = 50, .V = 220, .gates = gates, .state = 4}, 2);
}

TEST_F(WarpChunks, PackedSequences) {
  std::vector<std::int64_t> starts{0, 0, 5, 21, 37, 100, 101, 300};
  for (const std::int64_t size : {16, 32, 128}) {
    if (size == 128) starts.back() = 950;  // shorter ones have passes of their own on Hopper GPUs
    for (const char* gates : {"v", "ckv"})
      for (const bool reverse : {false, true})
        for (const DType dtype : {DType::bfloat16, DType::float32}) {
          if (dtype == DType::float32 && size == 128) continue;  // Hopper GPUs have another kernel
          check({.B = 1,
                 .T = starts.back(),
                 .K = size,
                 .V = size,
                 .gates = gates,
                 .state = 4,
                 .reverse = reverse,
                 .starts = starts},
                dtype);
        }
  }
}

TEST_F(WarpChunks, SequencesInSegments) {
  for (const std::int64_t size : {16, 32, 64, 128})
    for (const bool reverse : {false, true}) {
      const DType dtype = reverse ? DType::bfloat16 : DType::float32;
      if (dtype == DType::float32 && size == 128) continue;  // Hopper GPUs have another kernel
      const Spec s{.B = 1, .T = 1100, .H = 2, .K = size, .V = size, .gates = "kv", .state = 4, .reverse = reverse, .gate = -0.02};
      RecurrenceArguments x = make(s, gpu_or_cpu(), dtype);
      x.options.algorithm = Algorithm::chunk;
      EXPECT_GT(plan_of(x).forward.recurrent.segments, 2);
      check(x, s.str());
    }
}

TEST_F(WarpChunks, LargeDecay) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double strength : {-3.0, -4.0, -7.5, -20.0, -1e4, -kInfinity})
    for (const char* gates : {"v", "kv", "gv"})
      for (const DType dtype : {DType::bfloat16, DType::float16, DType::float32})
        for (const bool reverse : {false, true}) {
          const Spec s{.T = 70, .K = 24, .V = 32, .gates = gates, .state = 4, .reverse = reverse};
          RecurrenceArguments x = make(s, gpu_or_cpu(), dtype);
          for (Tensor* gate : {&x.options.g, &x.options.gk, &x.options.gv})
            if (gate->defined()) fill_data(*gate, strength);
          check(x, s.str() + " all " + std::to_string(strength));
          // A step of large decay among others.
          x = make(s, gpu_or_cpu(), dtype);
          for (Tensor* gate : {&x.options.g, &x.options.gk, &x.options.gv})
            if (gate->defined()) fill_data(slice(*gate, 1, 3, {}, 11), strength);
          check(x, s.str() + " some " + std::to_string(strength));
        }
}

TEST_F(WarpChunks, OutputsAlone) {
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{32, 32}, {24, 30}, {64, 64}})
    for (const bool reverse : {false, true}) {
      const Spec s{
          .B = 48, .T = K == 64 ? 30 : 75, .H = 8, .Hkv = 8, .K = K, .V = V, .gates = "k", .state = 4, .reverse = reverse};
      SCOPED_TRACE(s.str());
      RecurrenceArguments x = make(s, gpu_or_cpu(), DType::bfloat16);
      x.options.algorithm = Algorithm::chunk;
      EXPECT_EQ(plan_of(x).forward.kernels, AttentionKernels::warp_chunks);
      if (is_planned_alone(x)) continue;
      const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
      const RecurrenceReference expected = recurrence_reference(x, {}, {});
      constexpr double kTolerance = 1.28 * 0x1p-8;
      EXPECT_LE(relative_error(o, like(expected.o, o)), kTolerance);
      EXPECT_LE(relative_error(final_state, like(expected.final_state, final_state)), kTolerance);
    }
}

/// The outputs of heads with gates that all channels share, and gradients but those of the gates.
TEST_F(WarpChunks, SharedDecays) {
  for (const char* gates : {"m", "n", "g", "gm"})
    for (const std::int64_t size : {16, 12})
      for (const bool reverse : {false, true}) {
        const bool has_g = std::string(gates).find('g') != std::string::npos;
        const Spec s{.B = 32, .T = 70, .H = 16, .Hkv = 16, .K = size, .V = size, .gates = gates, .state = 4, .reverse = reverse};
        SCOPED_TRACE(s.str());
        RecurrenceArguments x = make(s, gpu_or_cpu(), DType::bfloat16);
        x.options.algorithm = Algorithm::chunk;
        const Tensor grad = random_tensor(x.value.shape(), gpu_or_cpu(), DType::bfloat16);
        if (!has_g)
          for (Tensor* input : {&x.query, &x.key, &x.value}) input->set_requires_grad();
        const AttentionPlan made = plan_of(x);
        EXPECT_EQ(made.forward.kernels, AttentionKernels::warp_chunks) << made.to_string();
        EXPECT_EQ(made.backward.kernels == AttentionKernels::warp_chunks, !has_g) << made.to_string();
        if (is_planned_alone(x)) continue;
        const RecurrenceReference expected = recurrence_reference(x, grad.to_vector<double>(), {});
        const auto [o, final_state] = recurrent(x.query, x.key, x.value, x.options);
        constexpr double kTolerance = 1.28 * 0x1p-8;
        EXPECT_LE(relative_error(o, like(expected.o, o)), kTolerance);
        EXPECT_LE(relative_error(final_state, like(expected.final_state, final_state)), kTolerance);
        if (has_g) continue;
        o.backward(grad);
        EXPECT_LE(relative_error(x.query.grad(), like(expected.query, x.query)), kTolerance);
        EXPECT_LE(relative_error(x.key.grad(), like(expected.key, x.key)), kTolerance);
        EXPECT_LE(relative_error(x.value.grad(), like(expected.value, x.value)), kTolerance);
      }
}

TEST_F(WarpChunks, RowsThatAreNotAligned) {
  const Spec s{.T = 40, .K = 16, .V = 16, .gates = "kv"};
  for (const DType dtype : {DType::bfloat16, DType::float32}) {
    RecurrenceArguments x = make(s, gpu_or_cpu(), dtype);
    for (Tensor* input : {&x.query, &x.key, &x.value, &x.options.gk, &x.options.gv}) *input = misaligned(*input);
    check(x, s.str());
  }
}

}  // namespace
}  // namespace glade
