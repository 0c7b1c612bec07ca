#pragma once
// Parts of a head's key channels as heads of their own. Outputs, states and all gradients are sums over key channels, or concern
// each channel alone; parts share queries' and values' tokens and the gates of their head.
#include <glade/ops/linear_attention/kernels.h>

namespace glade::cuda::chunk_sm90 {

/// The recurrence whose heads are `parts` of r's key channels, which must divide them. Keys that heads share are copied for each.
Recurrence parts_as_heads(const Recurrence& r, int parts);
/// x, of `tokens` rows, as [tokens, heads, size]; undefined where x is.
Tensor split_heads(const Tensor& x, std::int64_t tokens, std::int64_t heads, std::int64_t size);
/// States [.., heads, K, V] with another number of heads; undefined where x is.
Tensor states_of_heads(const Tensor& x, std::int64_t heads);
/// What happens to a state whose heads are parts of keys: the same, of heads. Parts share a decay that has no channels.
SegmentEffect effect_of_heads(const SegmentEffect& of_parts, std::int64_t heads, int parts);

}  // namespace glade::cuda::chunk_sm90
