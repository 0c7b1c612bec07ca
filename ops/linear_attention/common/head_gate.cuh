#pragma once
// The gates that all channels of a head share: g and g_gamma.
#include <glade/core/cuda/instructions.cuh>
#include <glade/ops/linear_attention/common/recurrence_arguments.h>
#include <glade/ops/linear_attention/common/safe_exponents.h>

namespace glade::cuda::linear_attention {

/// The log decay, base e, that g_gamma gives every token of a head; 0 without g_gamma.
__device__ inline float gamma_gate(const RecurrenceArguments& a, std::int64_t n, int head) {
  return a.g_gamma ? __ldg(a.g_gamma + n * a.gamma_step + head) : 0.f;
}

/// The gates of head `head` of sequence n, where tensors have elements of type E.
template <class E>
struct HeadGate {
  const RecurrenceArguments& a;
  const int head;
  const float gamma;

  __device__ HeadGate(const RecurrenceArguments& arguments, std::int64_t n, int head_index)
      : a(arguments), head(head_index), gamma(gamma_gate(arguments, n, head_index)) {}
  /// An element of g as it lies in memory. The thread waits for it only when it converts it.
  __device__ std::uint32_t load_bits(std::int64_t token) const {
    if (!a.g) return 0;
    const std::int64_t at = token * a.heads + head;
    return is_float() ? __ldg(static_cast<const std::uint32_t*>(a.g) + at) : __ldg(static_cast<const std::uint16_t*>(a.g) + at);
  }
  /// The log decay, base e, of a token whose bits load_bits() returned.
  __device__ float log_decay(std::uint32_t bits) const {
    return (is_float() ? __uint_as_float(bits) : unpack<E>(bits).x) + gamma;
  }
  /// The same in base 2.
  __device__ float log2_decay(std::uint32_t bits) const { return log_decay(bits) * base_2::kLog2e; }

 private:
  __device__ bool is_float() const { return std::is_same_v<E, float> || a.float_gates; }
};

}  // namespace glade::cuda::linear_attention
