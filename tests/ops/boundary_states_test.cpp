// The states before chunks that the forward pass keeps for the backward pass, and gradients that are computed beside the scan to
// the states' gradients, on Hopper GPUs.
#include <glade/core/graph.h>

#include "ops/chunk_cases.h"

namespace glade {
namespace {

using namespace testing_support;

class BoundaryStates : public HopperChunk {};

Tensor random_leaf(const Tensor& values) { return to_data(to_data(values, DType::bfloat16), kCUDA).set_requires_grad(); }

/// A call whose gradients are computed beside the scan.
struct Call {
  Tensor q, k, v, gk, grad;
  RecurrentOptions options;
  explicit Call(const Shape& rows)
      : q(random_leaf(random_tensor(rows))),
        k(random_leaf(random_tensor(rows))),
        v(random_leaf(random_tensor(rows))),
        gk(random_leaf(abs(random_tensor(rows)) * -0.1)),
        grad(random_leaf(random_tensor(rows)).detach()) {
    options.gk = gk;
    options.algorithm = Algorithm::chunk;
    EXPECT_TRUE(plan(q, k, v, options).backward.intra_chunk.beside_scan);
  }
  Tensor run() const { return recurrent(q, k, v, options).first; }
};

TEST_F(BoundaryStates, MatchTheReference) {
  // Few heads, so that the gradients are computed beside the scan.
  const Case few{.B = 2, .T = 510, .H = 3, .keeps_states = true, .beside_scan = true};
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {64, 64}, {24, 64}, {96, 96}, {128, 128}, {128, 40}, {72, 24}, {56, 160}, {256, 64}}) {
    Case c = few;
    c.K = K, c.V = V;
    check(c);
    c.dtype = DType::float16, c.reverse = true, c.wide_gates = true;
    check(c);
  }
  for (const double strength : {1e-4, 1.0, 20.0}) {  // the last two split chunks
    Case c = few;
    c.strength = strength;
    check(c);
    c.K = c.V = 128;
    check(c);
  }
  Case c = few;
  c.g = true, c.gk = false, c.H = 1;
  check(c);
  c = few;
  c.initial_state = false;
  check(c);
  c = few;
  c.shared_state = true, c.K = c.V = 128;
  check(c);
}

TEST_F(BoundaryStates, OfPackedSequencesAndSegments) {
  const Case packed{.B = 1,
                    .T = 900,
                    .H = 2,
                    .K = 128,
                    .V = 128,
                    .cu_seqlens = {0, 1, 1, 65, 600, 900},
                    .keeps_states = true,
                    .beside_scan = true};
  for (const std::int64_t segments : {0, 2, 5}) check_segments(packed, segments);
  check({.B = 1, .T = 5000, .H = 4, .K = 128, .V = 128, .keeps_states = true, .beside_scan = true});  // segments of its own
  check({.B = 1, .T = 512, .H = 4, .group = 2, .K = 128, .V = 128, .keeps_states = true, .beside_scan = true});
}

TEST_F(BoundaryStates, OfLargeCallsToo) {
  Case c{.B = 3, .T = 255, .H = 50, .K = 128, .V = 96, .keeps_states = true};  // the scan fills the GPU
  check(c);
  c.K = 64, c.reverse = true;
  check(c);
}

// With per-channel gates the last tile of keys has rows for its keys alone. Each case has other kernels.
TEST_F(BoundaryStates, OfKeysThatFillNoTile) {
  check({.B = 30, .T = 72, .H = 5, .K = 16, .V = 200, .keeps_states = true});
  check({.B = 3, .T = 300, .H = 60, .K = 104, .V = 136, .keeps_states = true});
  const Case few{.B = 2, .T = 500, .H = 2, .keeps_states = true, .beside_scan = true};
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{40, 120}, {80, 192}, {112, 256}})
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      Case c = few;
      c.K = K, c.V = V, c.dtype = dtype;
      check(c);
    }
  Case c = few;
  c.B = 1, c.T = 1500, c.K = 88, c.V = 160, c.cu_seqlens = {0, 1, 65, 65, 600, 1000, 1500};
  check(c);
}

/// Leaves NaNs in the memory that the next boundary states of these sizes will probably take.
void leave_nans(std::int64_t slots, std::int64_t heads, std::int64_t K, std::int64_t V, bool gk) {
  const auto tiles = [](std::int64_t channels) { return (channels + 63) / 64; };
  const Shape states{slots, heads, gk ? K : 64 * tiles(K), tiles(V), 64};
  const Tensor before = full(states, NAN, {DType::bfloat16, kCUDA}), after = full(states, NAN, {DType::bfloat16, kCUDA});
}

// States of zeros are neither stored nor read: those before the first chunk, and the gradients of those after the last.
TEST_F(BoundaryStates, OfZerosAreLeftOut) {
  for (const auto& [K, V] : std::vector<std::pair<std::int64_t, std::int64_t>>{{64, 64}, {128, 128}, {96, 256}, {256, 64}})
    for (const std::int64_t T : {40, 64, 100, 128, 250})
      for (const bool initial_state : {false, true})
        for (const bool final_gradient : {false, true})
          for (const bool gk : {false, true}) {
            Case c{.B = 3, .T = T, .H = 3, .K = K, .V = V, .g = !gk, .gk = gk, .initial_state = initial_state};
            c.final_gradient = final_gradient, c.reverse = T == 100;
            if (T == 250) c.dtype = DType::float16;
            const std::int64_t parts = gk && K > 128 ? 2 : 1, tokens = !gk && K > 128 ? 128 : 64;
            leave_nans(c.B * ((T + tokens - 1) / tokens), c.H * parts, K / parts, V, gk);
            check(c);
          }
  for (const std::int64_t K : {64, 128})  // by a reverse scan
    for (const bool initial_state : {false, true}) {
      Case c{.B = 5,
             .T = 300,
             .H = 60,
             .K = K,
             .V = 64,
             .g = true,
             .gk = false,
             .initial_state = initial_state,
             .reverse_scan = true};
      leave_nans(c.B * 5, c.H, K, c.V, false);
      check(c);
    }
  Case c{.B = 1, .T = 400, .H = 2, .K = 128, .V = 128, .initial_state = false, .cu_seqlens = {0, 0, 30, 94, 94, 300, 400}};
  c.final_gradient = false;
  leave_nans(400 / 64 + 6, c.H, c.K, c.V, true);
  check(c);
  c.strength = 20;  // large decay
  check(c);
  c.strength = 0.06, c.backward_parts = 3;
  check(c);
}

// What the kernels count while they run beside each other, they count anew in every pass: all passes leave the same bits.
TEST_F(BoundaryStates, StayTheSameFromPassToPass) {
  const Call call({2, 1000, 4, 128});
  const auto gradients = [&] {
    std::vector<std::vector<float>> all;
    for (const Tensor* x : {&call.q, &call.k, &call.v, &call.gk}) {
      all.push_back(to(x->grad(), DType::float32).to_vector<float>());
      x->set_grad({});
    }
    return all;
  };
  const Tensor o = call.run();
  o.backward(call.grad, true);
  const auto first = gradients();
  for (int i = 0; i < 50; ++i) {
    o.backward(call.grad, true);
    EXPECT_EQ(gradients(), first) << "pass " << i << " through the same graph";
  }
  for (int i = 0; i < 50; ++i) {
    call.run().backward(call.grad);
    EXPECT_EQ(gradients(), first) << "pass " << i << " through a graph of its own";
  }
}

TEST_F(BoundaryStates, InACapturedGraph) {
  const Call call({1, 500, 4, 64});
  const auto run = [&] { return autograd::grad({call.run()}, {call.q, call.k, call.v, call.gk}, {call.grad}); };
  Tensors replayed = run();  // what is made at a first use
  cuda::Graph graph;
  graph.capture([&] { replayed = run(); });
  for (int i = 0; i < 3; ++i) {
    for (const Tensor& x : {call.q, call.k, call.v, call.grad}) copy_data(x, random_leaf(random_tensor(x.shape())));
    graph.replay();
    const Tensors expected = run();
    for (std::size_t j = 0; j < expected.size(); ++j) EXPECT_EQ(relative_error(replayed[j], expected[j]), 0) << i << " " << j;
  }
}

}  // namespace
}  // namespace glade
