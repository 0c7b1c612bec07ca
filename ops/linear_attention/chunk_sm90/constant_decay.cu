// Launches of the passes for heads whose decay is the same at every step (chunk_sm90/constant_decay.cuh).
#include <algorithm>

#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/tensor_map.h>
#include <glade/ops/linear_attention/chunk_sm90/constant_decay.cuh>

namespace glade::cuda::chunk_sm90 {

namespace {

CUtensorMap map_of(const Rows& rows, std::int64_t tokens, std::int64_t token_step) {
  const std::int64_t sizes[] = {rows.size, rows.heads, tokens}, steps[] = {rows.size, token_step};
  const int box[] = {kTile, 1, kTile};
  return tensor_map(rows.data, sizes, steps, box);
}

/// Parts of sequences of so many chunks, of which there are `sequences` (one a pass, a head and a sequence).
std::int64_t segments_for(std::int64_t chunks, std::int64_t sequences, std::int64_t fill) {
  // A multiprocessor has one block at a time. A block, and the first launch, cost about as much as some chunks.
  constexpr std::int64_t kBlock = 4, kFirst = 5, kShortest = 4;
  std::int64_t best = 1, least = 0;
  for (std::int64_t segments = 1; segments <= std::max<std::int64_t>(chunks / kShortest, 1); ++segments) {
    const std::int64_t waves = (sequences * segments + fill - 1) / fill;
    const std::int64_t cost = waves * ((chunks + segments - 1) / segments + kBlock) + (segments > 1 ? kFirst : 0);
    if (segments == 1 || cost < least) best = segments, least = cost;
  }
  return best;
}

/// early: before the launch before it has ended.
void launch(void (*kernel)(ConstantDecay), std::int64_t blocks, std::size_t shared, bool early, Device device,
            const ConstantDecay& u) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kConstantDecayThreads);
  config.dynamicSmemBytes = shared;
  config.stream = stream(device);
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, u));
}

}  // namespace

template <class E>
void run_constant_decay_passes(std::span<const Pass> passes, std::int64_t tokens, std::int64_t segments, Device device) {
  constexpr std::size_t kBytes = sizeof(ConstantDecayShared<E>);
  static_assert(kBytes <= 227 * 1024);
  if (passes.empty() || passes[0].sequences == 0) return;
  for (const auto kernel : {constant_decay_scan_kernel<E>, constant_decay_output_kernel<E>})
    GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));

  ConstantDecay u{};
  const std::int64_t chunks = (passes[0].length + kTile - 1) / kTile, pairs = passes[0].sequences * passes[0].heads;
  const std::int64_t fill = multiprocessor_count(device), count = static_cast<std::int64_t>(passes.size());
  if (segments == 0) segments = segments_for(chunks, pairs * count, fill);
  segments = pairs > kMostPairs ? 1 : std::max<std::int64_t>(std::min(segments, chunks), 1);
  const std::int64_t waves = (count * pairs * segments + fill - 1) / fill;
  u.count = static_cast<int>(count);
  u.segments = static_cast<int>(segments);
  u.blocks = static_cast<int>(segments > 1 ? waves * fill / count : pairs);
  u.scan_blocks = u.blocks - static_cast<int>(pairs);  // where all remember; fewer have less to do
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Pass& p = u.passes[i] = passes[i];
    const auto map = [&](const Rows& rows) { return map_of(rows, tokens, std::int64_t{rows.heads} * rows.size); };
    u.maps[i] = {map(p.x), map(p.y), map(p.w),
                 p.float_out ? CUtensorMap{} : map_of({p.out, p.heads, 1, p.outer}, tokens, p.out_step)};
    u.forward += p.backward ? 0 : 1;
  }
  const std::int64_t blocks = count * u.blocks;
  const Scratch added_states(segments > 1 ? static_cast<std::size_t>(blocks) * kStateFloats * sizeof(float) : 0, device);
  u.added_states = added_states.data<float>();
  if (segments > 1) launch(constant_decay_scan_kernel<E>, count * u.scan_blocks, kBytes, false, device, u);
  launch(constant_decay_output_kernel<E>, blocks, kBytes, segments > 1, device, u);
}
template void run_constant_decay_passes<__nv_bfloat16>(std::span<const Pass>, std::int64_t, std::int64_t, Device);
template void run_constant_decay_passes<__half>(std::span<const Pass>, std::int64_t, std::int64_t, Device);

}  // namespace glade::cuda::chunk_sm90
