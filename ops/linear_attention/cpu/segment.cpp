// The decay of whole sequences on the CPU.
#include <cmath>

#include <glade/ops/linear_attention/cpu/kernels.h>
#include <glade/ops/linear_attention/cpu/staging.h>

namespace glade::cpu {

namespace {

/// The decay of each channel: e to the sum of `gates` [tokens, heads, size] over a sequence's tokens, times that of `shared`.
template <class T>
void decays(const Recurrence& r, const Tensor& gates, std::int64_t size, bool shared, const Tensor& out) {
  using F = compute_t<T>;
  constexpr std::int64_t kStagedTokens = 64;
  parallel_for(r.sequences * r.heads, 1, [&](std::int64_t first, std::int64_t last) {
    Rows<F> rows(kStagedTokens, size);
    std::array<F, kStagedTokens> head_gates;
    std::vector<double> sums(static_cast<std::size_t>(size));
    for (std::int64_t i = first; i < last; ++i) {
      const std::int64_t n = i / r.heads, h = i % r.heads;
      const Sequence sequence(r, n);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::int64_t position = 0; position < sequence.length; position += kStagedTokens) {
        const std::int64_t count = std::min(kStagedTokens, sequence.length - position);
        if (shared) load_head_gates<T>(r, sequence, n, h, position, count, head_gates.data());
        if (gates.defined()) load_rows<T>(gates, HeadRows(sequence, position, r.heads, h, size), count, size, rows, count);
        for (std::int64_t t = 0; t < count; ++t)
          for (std::int64_t c = 0; c < size; ++c)
            sums[static_cast<std::size_t>(c)] +=
                (gates.defined() ? rows[t][c] : F{0}) + (shared ? head_gates[static_cast<std::size_t>(t)] : F{0});
      }
      for (std::int64_t c = 0; c < size; ++c)
        out.data<F>()[i * size + c] = static_cast<F>(std::exp(sums[static_cast<std::size_t>(c)]));
    }
  });
}

}  // namespace

void segment_decays(const Recurrence& r, SegmentEffect& effect) {
  const TensorOptions options{r.state_dtype(), kCPU};
  const std::int64_t keys = r.gk.defined() ? r.K : 1;
  effect.key_decay = empty({r.sequences, r.heads, keys}, options);
  if (r.gv.defined()) effect.value_decay = empty({r.sequences, r.heads, r.V}, options);
  visit_floating(r.q.dtype(), [&]<class T>(TypeTag<T>) {
    decays<T>(r, r.gk, keys, true, effect.key_decay);
    if (r.gv.defined()) decays<T>(r, r.gv, r.V, false, effect.value_decay);
  });
}

}  // namespace glade::cpu
