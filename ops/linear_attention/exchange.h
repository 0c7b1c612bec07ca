#pragma once
// The recurrence of tokens whose sequences begin or go on elsewhere, such as on another device.
#include <glade/ops/linear_attention/kernels.h>

namespace glade::linear_attention {

/// What the other tokens make of the states. Each function is called once in its pass, without recording.
struct Exchange {
  struct States {
    Tensor before;  ///< before these tokens; undefined: zeros
    Tensor last;    ///< what the call returns as final state; undefined: the state after these tokens
  };
  /// From what these tokens do to a state.
  std::function<States(const SegmentEffect&)> states;
  /// The gradient of the state after these tokens, from what the gradient of their outputs adds to that of the state before them
  /// and the gradient of the call's final state; both of the latter may be undefined.
  std::function<Tensor(const Tensor& added, const Tensor& of_final_state)> gradient;
  /// These tokens begin with options.initial_state, and `before` does not count; else that gets a gradient of zeros.
  bool keeps_initial_state = true;
};

/// recurrent() of these tokens. Where kernels take sequences in segments, the exchange lies between their two stages: what the
/// segments do to states, and the results. Else a scan over the tokens, without results, comes before it.
std::pair<Tensor, Tensor> recurrent(const Tensor& query, const Tensor& key, const Tensor& value, const RecurrentOptions& options,
                                    const Exchange& exchange);

/// What the tokens of r do to a state, by a scan of their own.
SegmentEffect effect_of(const Recurrence& r, Algorithm algorithm);

/// The gradient of the state before the tokens of r, by a scan of its own, from those of their outputs and of the state after
/// them, which may be undefined.
Tensor gradient_before(const Recurrence& r, Algorithm algorithm, const Tensor& grad_o, const Tensor& grad_after);

}  // namespace glade::linear_attention
