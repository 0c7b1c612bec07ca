// Launches of the constant-decay passes (constant_decay.cuh).
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

/// early: the kernel may start before the launch before it has ended.
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
void run_constant_decay_passes(std::span<const ConstantDecayPass> passes, std::int64_t tokens, const ConstantDecayPlan& plan,
                               Device device) {
  constexpr std::size_t kBytes = sizeof(ConstantDecayShared<E>);
  static_assert(kBytes <= 227 * 1024);
  if (passes.empty() || passes[0].sequences.count == 0) return;
  for (const auto kernel : {constant_decay_scan_kernel<E>, constant_decay_output_kernel<E>})
    GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));

  ConstantDecay u{};
  u.count = static_cast<int>(passes.size());
  u.segments = plan.segments;
  u.blocks = plan.blocks;
  u.scan_blocks = plan.scan_blocks;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const ConstantDecayPass& p = u.passes[i] = passes[i];
    const auto map = [&](const Rows& rows) { return map_of(rows, tokens, std::int64_t{rows.heads} * rows.size); };
    u.maps[i] = {map(p.x), map(p.y), map(p.w),
                 p.float_out ? CUtensorMap{} : map_of({p.out, p.heads, 1, p.outer}, tokens, p.out_step)};
    u.forward += p.backward ? 0 : 1;
  }
  const std::int64_t blocks = std::int64_t{u.count} * u.blocks;
  const Scratch added_states(plan.segments > 1 ? static_cast<std::size_t>(blocks) * kStateFloats * sizeof(float) : 0, device);
  u.added_states = added_states.data<float>();
  if (plan.segments > 1) launch(constant_decay_scan_kernel<E>, std::int64_t{u.count} * u.scan_blocks, kBytes, false, device, u);
  launch(constant_decay_output_kernel<E>, blocks, kBytes, plan.segments > 1, device, u);
}
template void run_constant_decay_passes<__nv_bfloat16>(std::span<const ConstantDecayPass>, std::int64_t, const ConstantDecayPlan&,
                                                       Device);
template void run_constant_decay_passes<__half>(std::span<const ConstantDecayPass>, std::int64_t, const ConstantDecayPlan&,
                                                Device);

}  // namespace glade::cuda::chunk_sm90
