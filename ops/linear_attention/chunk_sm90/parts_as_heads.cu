#include <glade/ops/linear_attention/chunk_sm90/parts_as_heads.h>

#include <glade/ops/shape/shape.h>

namespace glade::cuda::chunk_sm90 {

Tensor split_heads(const Tensor& x, std::int64_t tokens, std::int64_t heads, std::int64_t size) {
  return x.defined() ? reshape(x, {tokens, heads, size}) : x;
}
Tensor states_of_heads(const Tensor& x, std::int64_t heads) {
  if (!x.defined()) return x;
  const std::int64_t keys = x.size(-3) * x.size(-2) / heads, V = x.size(-1);
  return reshape(x, x.ndim() == 3 ? Shape{heads, keys, V} : Shape{x.size(0), heads, keys, V});
}
SegmentEffect effect_of_heads(const SegmentEffect& of_parts, std::int64_t heads, int parts) {
  SegmentEffect effect{states_of_heads(of_parts.added, heads), of_parts.key_decay, {}};
  if (!effect.key_decay.defined()) return effect;
  const Tensor decay = reshape(effect.key_decay, {effect.added.size(0), heads, -1});
  effect.key_decay = of_parts.key_decay.size(-1) == 1 ? contiguous_data(slice(decay, 2, 0, {}, parts)) : decay;
  return effect;
}

Recurrence parts_as_heads(const Recurrence& r, int parts) {
  Recurrence split = r;
  split.heads *= parts;
  split.kv_heads = split.heads;
  split.K /= parts;
  split.q = split_heads(r.q, r.tokens, split.heads, split.K);
  // The kernels find the head of keys by division, which the parts of several heads that share one would not allow.
  const Tensor keys = r.group() == 1 ? r.k : repeat_interleave(r.k, r.group(), -2);
  split.k = split_heads(keys, r.tokens, split.heads, split.K);
  split.gk = split_heads(r.gk, r.tokens, split.heads, split.K);
  for (Tensor* gate : {&split.g, &split.g_gamma})
    if (gate->defined()) *gate = repeat_interleave(*gate, parts, -1);
  split.initial_state = states_of_heads(r.initial_state, split.heads);
  if (r.exchange)
    split.exchange = [exchange = r.exchange, parts, heads = r.heads](const SegmentEffect& effect) {
      return states_of_heads(exchange(effect_of_heads(effect, heads, parts)), heads * parts);
    };
  return split;
}

}  // namespace glade::cuda::chunk_sm90
