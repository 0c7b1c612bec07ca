// Launches of the passes for heads whose decay is the same at every step (chunk_uniform.cuh).
#include <algorithm>

#include <glade/core/cuda/cuda.h>
#include <glade/core/cuda/tensor_map.h>
#include <glade/ops/linear_attention/chunk_uniform.cuh>

namespace glade::cuda::passes {

namespace {

CUtensorMap map_of(const Rows& rows, std::int64_t tokens, std::int64_t token_step) {
  const std::int64_t sizes[] = {rows.size, rows.heads, tokens}, steps[] = {rows.size, token_step};
  const int box[] = {kTile, 1, kTile};
  return tensor_map(rows.data, sizes, steps, box);
}

/// Parts of sequences of so many chunks, of which there are `sequences` (one a pass, a head and a sequence).
std::int64_t parts_of(std::int64_t chunks, std::int64_t sequences, std::int64_t fill) {
  // A multiprocessor has one block at a time. A block, and the first launch, cost about as much as some chunks.
  constexpr std::int64_t kBlock = 4, kFirst = 5, kShortest = 4;
  std::int64_t best = 1, least = 0;
  for (std::int64_t parts = 1; parts <= std::max<std::int64_t>(chunks / kShortest, 1); ++parts) {
    const std::int64_t turns = (sequences * parts + fill - 1) / fill;
    const std::int64_t cost = turns * ((chunks + parts - 1) / parts + kBlock) + (parts > 1 ? kFirst : 0);
    if (parts == 1 || cost < least) best = parts, least = cost;
  }
  return best;
}

/// early: before the launch before it has ended.
void launch(void (*kernel)(Uniform), std::int64_t blocks, std::size_t shared, bool early, Device device, const Uniform& u) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kUniformThreads);
  config.dynamicSmemBytes = shared;
  config.stream = stream(device);
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  GLADE_CUDA(cudaLaunchKernelEx(&config, kernel, u));
}

}  // namespace

template <class E>
void run_uniform_passes(std::span<const Pass> passes, std::int64_t tokens, std::int64_t parts, Device device) {
  constexpr std::size_t kBytes = sizeof(UniformShared<E>);
  static_assert(kBytes <= 227 * 1024);
  if (passes.empty() || passes[0].sequences == 0) return;
  for (const auto kernel : {walk_kernel<E>, results_kernel<E>})
    GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));

  Uniform u{};
  const std::int64_t chunks = (passes[0].length + kTile - 1) / kTile, pairs = passes[0].sequences * passes[0].heads;
  const std::int64_t fill = multiprocessor_count(device), count = static_cast<std::int64_t>(passes.size());
  if (parts == 0) parts = parts_of(chunks, pairs * count, fill);
  parts = pairs > kMostPairs ? 1 : std::max<std::int64_t>(std::min(parts, chunks), 1);
  const std::int64_t turns = (count * pairs * parts + fill - 1) / fill;
  u.count = static_cast<int>(count);
  u.parts = static_cast<int>(parts);
  u.blocks = static_cast<int>(parts > 1 ? turns * fill / count : pairs);
  u.walkers = u.blocks - static_cast<int>(pairs);  // where all remember; fewer have less to do
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const Pass& p = u.passes[i] = passes[i];
    const auto map = [&](const Rows& rows) { return map_of(rows, tokens, std::int64_t{rows.heads} * rows.size); };
    u.maps[i] = {map(p.x), map(p.y), map(p.w),
                 p.wide_out ? CUtensorMap{} : map_of({p.out, p.heads, 1, p.outer}, tokens, p.out_step)};
    u.forward += p.backward ? 0 : 1;
  }
  const std::int64_t blocks = count * u.blocks;
  const Scratch adds(parts > 1 ? static_cast<std::size_t>(blocks) * kStateFloats * sizeof(float) : 0, device);
  u.adds = adds.data<float>();
  if (parts > 1) launch(walk_kernel<E>, count * u.walkers, kBytes, false, device, u);
  launch(results_kernel<E>, blocks, kBytes, parts > 1, device, u);
}
template void run_uniform_passes<__nv_bfloat16>(std::span<const Pass>, std::int64_t, std::int64_t, Device);
template void run_uniform_passes<__half>(std::span<const Pass>, std::int64_t, std::int64_t, Device);

}  // namespace glade::cuda::passes
