#include <algorithm>
#include <cmath>

#include <glade/ops/linear_attention/plan_sm90_passes.h>

namespace glade::sm90 {
namespace {

/// Blocks of one kind: how many run on a multiprocessor, what a chunk takes, and the start of a block.
struct Blocks {
  int on_multiprocessor;
  double chunk, start;
};
/// What a pass takes: its launches, its blocks, and those that find the states before segments, if a pass without outputs does.
struct PassTimes {
  double start;
  Blocks outputs, states;
};

PassTimes times_of_pass(const AttentionProblem& p, const Sm90PassPlan& plan) {
  const double start_of_shared = plan.segments == 1 ? 0.3 : 3;  // states before segments are loaded
  if (p.K > kChunkTokens) {
    if (plan.gates_first) return {6.3, {1, 0.93, 4.2}, {1, 0.62, 4}};
    if (plan.shared_gates) return {9, {1, 1.99, start_of_shared}, {1, 1.8, 2}};
    return plan.wide_blocks ? PassTimes{3.5, {1, 4.45, 2.9}, {1, 2, 2.9}} : PassTimes{2.9, {1, 3.05, 2.6}, {1, 2.2, 2.6}};
  }
  if (plan.shared_gates) return {8.5, {1, 1.99, start_of_shared}, {2, 2.1, 0.5}};
  if (p.gk) return plan.wide_blocks ? PassTimes{2.8, {1, 3.1, 1.9}, {1, 1.3, 2.4}} : PassTimes{2.8, {2, 4, 3}, {2, 2.1, 0.5}};
  return plan.wide_blocks ? PassTimes{2.8, {1, 2.4, 2}, {1, 1, 2.3}} : PassTimes{2.8, {2, 2.6, 2.3}, {2, 1.3, 2}};
}

/// The time of `count` blocks, which go through `chunks` in all.
double time_of(const AttentionProblem& p, const Sm90PassPlan& plan, const Blocks& blocks, double count, double chunks) {
  constexpr double kAlone = 0.7;  // of the time, where the other place on a multiprocessor stays empty
  const double multiprocessors = std::max(p.gpu.multiprocessors, 1), at_once = blocks.on_multiprocessor * multiprocessors,
               longest = plan.segment_chunks * blocks.chunk;
  const double time = time_of_blocks(p, {.blocks = count,
                                         .all = chunks * blocks.chunk,
                                         .longest = longest,
                                         .at_once = at_once,
                                         .start = blocks.start,
                                         .turn = blocks.start});
  const double last = has_even_lengths(p) ? std::fmod(count, at_once) : count;
  const bool alone = blocks.on_multiprocessor > 1 && last > 0 && last <= multiprocessors;
  return alone ? time - (1 - kAlone) * (longest + blocks.start) : time;
}

/// Of clusters that have shares of all chunks.
double time_of_shares(const AttentionProblem& p, const Sm90PassPlan& plan) {
  constexpr double kStart = 8.5, kChunk = 2.05, kShareOfItem = 0.65;
  const auto blocks = static_cast<double>(forward_columns(p, plan) * all_heads(p));
  return kStart + kChunk * plan.share + kShareOfItem * std::max(1.0, p.gpu.multiprocessors / blocks);
}

/// Of what finds the states before segments.
double time_of_states(const AttentionProblem& p, const Sm90PassPlan& plan, const Blocks& of_pass) {
  Blocks blocks = of_pass;
  auto columns = static_cast<double>(forward_columns(p, plan));
  if (plan.scan_for_states) {
    blocks = p.K <= kChunkTokens ? Blocks{1, 1, 3.2} : Blocks{1, plan.scan_key_tiles == 1 ? 0.77 : 1.28, 6.4};
    columns = static_cast<double>(ceil_div(tiles(p.K), plan.scan_key_tiles) * ceil_div(tiles(p.V), 2));
  }
  const double count = columns * static_cast<double>(p.heads) * scanned_of_all(p, plan);
  return time_of(p, plan, blocks, count, count * plan.segment_chunks);
}

}  // namespace

bool knows_time_of_forward(const AttentionProblem& p) { return p.K <= (p.gk ? 2 : 1) * kChunkTokens; }

double time_of_forward(const AttentionProblem& p, const Sm90PassPlan& plan) {
  constexpr double kRows = 1.85, kFloatGates = 1.4, kFloatRows = 1.25, kPlaces = 8;
  if (plan.share > 0) return time_of_shares(p, plan);
  PassTimes pass = times_of_pass(p, plan);
  const bool has_float_gates = has_float_key_gates(p);
  if (has_float_gates && !plan.gates_first) pass.outputs.chunk *= kFloatGates, pass.states.chunk *= kFloatGates;
  // Blocks of packed sequences do not take turns, and a launch finds where their segments are. Fitted to 100 shapes.
  if (p.packed && !plan.gates_first) pass.outputs.start += pass.start;
  if (p.packed && plan.segments > 1) pass.start += kPlaces;
  const auto columns = static_cast<double>(forward_columns(p, plan) * p.heads);
  double time = pass.start + time_of(p, plan, pass.outputs, columns * segments_of_all(p, plan), columns * chunks_of_all(p));
  if (plan.gates_first)
    time += (has_float_gates ? kFloatRows : 1) * kRows * static_cast<double>(tiles(p.K) * chunk_slots(p) * p.heads) /
            std::max(p.gpu.multiprocessors, 1);
  if (scanned_segments(p, plan) == 0) return time;
  // Two segments need no launch that joins what they leave.
  const double join = plan.segments == 2   ? (p.gk ? 1.5 : 0.5)
                      : p.K > kChunkTokens ? 3.5
                                           : 5,
               of_segment = p.K > kChunkTokens ? 0.1
                            : p.gk             ? 0.35
                                               : 0.25;
  return time + time_of_states(p, plan, pass.states) + join + of_segment * plan.segments;
}

}  // namespace glade::sm90
