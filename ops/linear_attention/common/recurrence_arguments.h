#pragma once
// What CUDA kernels are told of a recurrence: where its sequences lie, and the gates of its heads.
#include <cstdint>

#include <glade/core/pointer.h>
#include <glade/ops/linear_attention/kernels.h>

namespace glade::cuda::linear_attention {

/// Where the sequences lie. Kernels find one of them with Sequence (common/sequence.cuh).
struct Sequences {
  const std::int64_t* cu_seqlens;  ///< [count + 1], token offsets of packed sequences; null: each has `length` tokens
  std::int64_t count, length;      ///< length: of the longest sequence
  bool reverse;                    ///< the recurrence runs from the last token to the first
};

inline Sequences sequences(const Recurrence& r) {
  return {pointer<const std::int64_t>(r.cu_seqlens), r.sequences, r.length, r.reverse};
}

/// The numbers that chunks of kChunkTokens tokens, or groups of so many chunks, have are below this (Sequence::first_slot).
inline std::int64_t chunk_slots(const Sequences& all, std::int64_t tokens, int group = 1) {
  const std::int64_t of_group = group * kChunkTokens;
  return all.cu_seqlens ? tokens / of_group + all.count : all.count * ((all.length + of_group - 1) / of_group);
}
inline std::int64_t chunk_slots(const Recurrence& r, int group = 1) { return chunk_slots(sequences(r), r.tokens, group); }

/// What all chunk kernels are told of a recurrence. Argument structs of kernels extend it.
struct RecurrenceArguments {
  const void *g, *gk;  ///< per-head and per-channel gates, in the elements' type, or float where float_gates; may be null
  bool float_gates;
  const float* g_gamma;  ///< [heads] of every sequence, gamma_step elements from one sequence to the next; or null
  int gamma_step;
  Sequences sequences;
  int heads;
  float scale;  ///< factor of outputs, and of the states' gradients

  constexpr bool has_head_gates() const { return g != nullptr || g_gamma != nullptr; }  ///< Whether g or g_gamma is there.
};

inline RecurrenceArguments recurrence_arguments(const Recurrence& r) {
  const Tensor& gates = r.gk.defined() ? r.gk : r.g;
  return {.g = pointer(r.g),
          .gk = pointer(r.gk),
          .float_gates = gates.defined() && gates.dtype() == DType::float32,
          .g_gamma = pointer<const float>(r.g_gamma),
          .gamma_step = static_cast<int>(r.gamma_step()),
          .sequences = sequences(r),
          .heads = static_cast<int>(r.heads),
          .scale = static_cast<float>(r.scale)};
}

}  // namespace glade::cuda::linear_attention
