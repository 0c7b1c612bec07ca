#pragma once
// The gated recurrence and its gradients as tests/reference/gated_recurrence.py defines them: plain loops in float64 over
// vectors, sharing nothing with the library's kernels. Threads have different heads or sequences.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <glade/ops/linear_attention/linear_attention.h>

namespace glade::testing_support {

using Values = std::vector<double>;

/// query, key, value and the options of a call.
struct RecurrenceArguments {
  Tensor query, key, value;
  RecurrentOptions options;

  /// Every tensor that has a gradient, by name; undefined where not given.
  std::vector<std::pair<const char*, Tensor*>> named() {
    return {{"query", &query},
            {"key", &key},
            {"value", &value},
            {"g", &options.g},
            {"g_gamma", &options.g_gamma},
            {"gk", &options.gk},
            {"gv", &options.gv},
            {"initial_state", &options.initial_state}};
  }
};

struct RecurrenceReference {
  Values o, final_state;
  Values query, key, value, g, g_gamma, gk, gv,
      initial_state;  ///< gradients of sum(o * grad_o) + sum(final_state * grad_final_state)
  /// The gradient of a gate is a sum of products of both signs: of the state that is left over from before the step, and the
  /// gradient of the state after it.
  struct GateSum {
    double value = 0;
    double squares = 0;        ///< of the products
    double whole_squares = 0;  ///< of the products with the whole state after the step

    void add(double product, double whole) { value += product, squares += product * product, whole_squares += whole * whole; }
    void add(const GateSum& s) { value += s.value, squares += s.squares, whole_squares += s.whole_squares; }
    /// The size that sums of such products have.
    double size() const { return std::max(std::abs(value), std::sqrt(squares)); }
    double whole_size() const { return std::sqrt(whole_squares); }
  };
  /// What errors of gates' gradients are measured by.
  struct GateSizes {
    double size = 0, whole = 0;

    void add(const GateSizes& s) { size += s.size, whole += s.whole; }
  };
  GateSizes head_gates, channel_gates, value_gates;  ///< root mean squares, times the root of the number
  std::vector<GateSizes> g_gamma_steps;              ///< of each gradient: added up over the steps

  const Values& gradient(std::size_t input) const {
    const Values* all[] = {&query, &key, &value, &g, &g_gamma, &gk, &gv, &initial_state};
    return *all[input];
  }
};

inline RecurrenceReference recurrence_reference(const RecurrenceArguments& x, const Values& grad_o,
                                                const Values& grad_final_state) {
  auto read = [](const Tensor& t) { return t.defined() ? t.to_vector<double>() : Values(); };
  const Values q = read(x.query), k = read(x.key), v = read(x.value), g = read(x.options.g), gamma = read(x.options.g_gamma),
               gk = read(x.options.gk), gv = read(x.options.gv), initial = read(x.options.initial_state);
  const std::int64_t H = x.query.size(-2), Hkv = x.key.size(-2), K = x.query.size(-1), V = x.value.size(-1),
                     group = H / std::max<std::int64_t>(Hkv, 1);  // heads that share keys
  const bool channel_g = x.options.g.defined() && x.options.g.ndim() == x.query.ndim();
  const double scale = x.options.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(K)));

  std::vector<std::int64_t> starts;
  if (x.options.cu_seqlens.defined()) {
    starts = x.options.cu_seqlens.to_vector<std::int64_t>();
  } else {
    for (std::int64_t b = 0; b <= x.query.size(0); ++b) starts.push_back(b * x.query.size(1));
  }
  const auto N = static_cast<std::int64_t>(starts.size()) - 1;

  RecurrenceReference y;
  auto zeros = [](std::int64_t n) { return Values(static_cast<std::size_t>(n), 0.0); };
  y.o = zeros(starts.back() * H * V);
  y.final_state = zeros(N * H * K * V);
  y.query = zeros(x.query.numel());
  y.key = zeros(x.key.numel());
  y.value = zeros(x.value.numel());
  y.g.assign(g.size(), 0);
  y.g_gamma.assign(gamma.size(), 0);
  y.g_gamma_steps.resize(gamma.size());
  y.gk.assign(gk.size(), 0);
  y.gv.assign(gv.size(), 0);
  y.initial_state.assign(initial.size(), 0);

  auto add_squares = [](RecurrenceReference::GateSizes& sizes, const RecurrenceReference::GateSum& sum) {
    sizes.size += sum.size() * sum.size();
    sizes.whole += sum.whole_squares;
  };
  struct Sizes {
    RecurrenceReference::GateSizes head_gates, channel_gates, value_gates;
  };
  const auto add_head = [&](std::int64_t n, std::int64_t h, Sizes& sizes) {
    const auto L = static_cast<std::size_t>(starts[n + 1] - starts[n]);
    const auto size = static_cast<std::size_t>(K * V);
    const std::size_t state_at = initial.size() == size * static_cast<std::size_t>(H) ? h * size : (n * H + h) * size;
    const std::size_t gamma_at = gamma.size() == static_cast<std::size_t>(H) ? h : n * H + h;
    const std::size_t final_at = static_cast<std::size_t>(n * H + h) * size;
    auto token = [&](std::size_t p) { return static_cast<std::size_t>(starts[n]) + (x.options.reverse ? L - 1 - p : p); };
    // The decays of a step, [K, V]: an exponential for each row, and where there is gv for each element.
    Values decays(size);
    auto set_decays = [&](std::size_t row) {
      for (std::int64_t i = 0; i < K; ++i) {
        double log = gamma.empty() ? 0 : gamma[gamma_at];
        if (!g.empty()) log += channel_g ? g[row * K + i] : g[row];
        if (!gk.empty()) log += gk[row * K + i];
        double* D = decays.data() + i * V;
        if (gv.empty()) {
          std::fill_n(D, V, std::exp(log));
        } else {
          std::transform(&gv[row * V], &gv[row * V] + V, D, [&](double value_log) { return std::exp(log + value_log); });
        }
      }
    };
    std::vector<Values> states(L + 1, Values(size, 0.0));  // states[p]: before step p
    for (std::size_t e = 0; e < size; ++e)
      if (!initial.empty()) states[0][e] = initial[state_at + e];
    for (std::size_t p = 0; p < L; ++p) {
      const std::size_t row = token(p) * H + h, kv = token(p) * Hkv + h / group;
      set_decays(row);
      for (std::int64_t i = 0; i < K; ++i)
        for (std::int64_t j = 0; j < V; ++j) {
          const double s = decays[i * V + j] * states[p][i * V + j] + k[kv * K + i] * v[kv * V + j];
          states[p + 1][i * V + j] = s;
          y.o[row * V + j] += scale * q[row * K + i] * s;
        }
    }
    std::copy(states[L].begin(), states[L].end(), y.final_state.begin() + static_cast<std::ptrdiff_t>(final_at));

    Values dS(size, 0.0);
    for (std::size_t e = 0; e < size; ++e)
      if (!grad_final_state.empty()) dS[e] = grad_final_state[final_at + e];
    for (std::size_t p = L; p-- > 0;) {
      const std::size_t row = token(p) * H + h, kv = token(p) * Hkv + h / group;
      RecurrenceReference::GateSum step;
      std::vector<RecurrenceReference::GateSum> values(gv.empty() ? 0 : static_cast<std::size_t>(V));
      set_decays(row);
      for (std::int64_t i = 0; i < K; ++i) {
        RecurrenceReference::GateSum channel;
        for (std::int64_t j = 0; j < V; ++j) {
          const double D = decays[i * V + j], out = grad_o.empty() ? 0 : grad_o[row * V + j];
          double& d = dS[i * V + j];
          y.query[row * K + i] += scale * states[p + 1][i * V + j] * out;
          d += scale * q[row * K + i] * out;
          y.key[kv * K + i] += d * v[kv * V + j];
          y.value[kv * V + j] += d * k[kv * K + i];
          const double log = d * D * states[p][i * V + j];
          if (!g.empty()) y.g[channel_g ? row * K + i : row] += log;
          if (!gk.empty()) y.gk[row * K + i] += log;
          if (!gv.empty()) y.gv[row * V + j] += log;
          channel.add(log, d * states[p + 1][i * V + j]);
          if (!gv.empty()) values[j].add(log, d * states[p + 1][i * V + j]);
          d *= D;
        }
        add_squares(sizes.channel_gates, channel);
        step.add(channel);
      }
      add_squares(sizes.head_gates, step);
      for (const auto& value : values) add_squares(sizes.value_gates, value);
      if (gamma.empty()) continue;
      y.g_gamma[gamma_at] += step.value;
      y.g_gamma_steps[gamma_at].size += step.size();
      y.g_gamma_steps[gamma_at].whole += step.whole_size();
    }
    for (std::size_t e = 0; e < size; ++e)
      if (!initial.empty()) y.initial_state[state_at + e] += dS[e];
  };
  // A thread has heads that share keys, and all sequences that share a gradient of the initial state or of g_gamma.
  const auto is_shared = [&](const Values& of_heads, std::int64_t n) {
    return !of_heads.empty() && static_cast<std::int64_t>(of_heads.size()) == H * n;
  };
  const std::int64_t together = is_shared(initial, K * V) || is_shared(gamma, 1) ? N : 1, parts = N == 0 ? 0 : N / together * Hkv;
  std::vector<Sizes> sizes_of_parts(static_cast<std::size_t>(parts));
#pragma omp parallel for schedule(dynamic)
  for (std::int64_t part = 0; part < parts; ++part)
    for (std::int64_t n = part / Hkv * together; n < (part / Hkv + 1) * together; ++n)
      for (std::int64_t h = part % Hkv * group; h < (part % Hkv + 1) * group; ++h)
        add_head(n, h, sizes_of_parts[static_cast<std::size_t>(part)]);
  for (const Sizes& sizes : sizes_of_parts) {
    y.head_gates.add(sizes.head_gates);
    y.channel_gates.add(sizes.channel_gates);
    y.value_gates.add(sizes.value_gates);
  }
  for (RecurrenceReference::GateSizes* sizes : {&y.head_gates, &y.channel_gates, &y.value_gates})
    *sizes = {std::sqrt(sizes->size), std::sqrt(sizes->whole)};
  return y;
}

}  // namespace glade::testing_support
