// Launches of the constant-decay passes (constant_decay.cuh).
#include <glade/core/cuda/cuda.h>
#include <glade/ops/linear_attention/chunk_sm90/constant_decay.cuh>
#include <glade/ops/linear_attention/chunk_sm90/row_maps.h>

namespace glade::cuda::chunk_sm90 {

namespace {

/// Sums up what the segments of each sequence add to a state at its end, for one pass, from the states that the first launch
/// left, and finds the decays of the sequences. A thread has four neighbours of what a consumer's thread has.
__global__ void __launch_bounds__(kGroup)
    constant_decay_effect_kernel(const __grid_constant__ ConstantDecay u, float* added, float* decay) {
  const ConstantDecayPass& p = u.passes[u.exchange_pass];
  const int thread = static_cast<int>(threadIdx.x);
  const BlockSegment segment(u, p, static_cast<int>(blockIdx.x), true, true, thread % 32);
  if (segment.pair < 0 || !segment.is_last(p.backward)) return;
  const std::int64_t n = segment.pair / p.heads;
  const Decays decays(p, n, static_cast<int>(segment.pair - n * p.heads));
  const int length = linear_attention::Sequence<int>(p.sequences, n).length;
  constexpr int kPieces = kStateFloats / (8 * kGroup);  // of a consumer
  const int consumer = static_cast<int>(blockIdx.y) / kPieces, piece = static_cast<int>(blockIdx.y) % kPieces;
  const float4* states =
      reinterpret_cast<const float4*>(u.added_states + std::int64_t{u.exchange_pass} * u.blocks * kStateFloats);
  float sums[4] = {};
  for (int number = segment.long_memory ? 0 : segment.number; number < segment.segments; ++number) {
    const int edge = min((p.backward ? number : number + 1) * segment.segment_chunks * kTile, length);
    const float by = segment.long_memory ? decays.over(p.backward ? edge : length - edge) : 1.f;
    const float4 values =
        states[((std::int64_t{segment.slot} + number) * 2 + consumer) * (kStateFloats / 8) + piece * kGroup + thread];
    sums[0] += values.x * by, sums[1] += values.y * by, sums[2] += values.z * by, sums[3] += values.w * by;
  }
  for (int i = 0; i < 4; ++i) {
    const int element = piece % 8 * 4 + i, outer = consumer * kTile + Accumulator<kTile>::row(element, thread),
              inner = piece / 8 * kTile + Accumulator<kTile>::column(element, thread);
    if (outer < p.outer && inner < p.inner)
      added[segment.pair * p.inner * p.outer + std::int64_t{outer} * p.outer_stride + std::int64_t{inner} * p.inner_stride] =
          sums[i] * (p.backward ? p.scale : 1.f);
  }
  if (blockIdx.y == 0 && thread == 0) decay[segment.pair] = decays.over(length);
}

/// Between the launches: the states before the sequences, for all passes in the direction of the exchange.
void run_exchange(ConstantDecay& u, const ConstantDecayExchange& exchange, Device device) {
  const dim3 grid(static_cast<unsigned>(u.scan_blocks), kStateFloats / 4 / kGroup);
  constant_decay_effect_kernel<<<grid, kGroup, 0, stream(device)>>>(u, exchange.added, exchange.decay);
  GLADE_CUDA_LAUNCHED();
  const auto [first, is_shared] = exchange.run();
  for (ConstantDecayPass& p : u.passes)
    if (p.backward == u.passes[u.exchange_pass].backward) p.first = first, p.first_is_shared = is_shared;
}

}  // namespace

template <class E>
void run_constant_decay_passes(std::span<const ConstantDecayPass> passes, std::int64_t tokens, const ConstantDecayPlan& plan,
                               Device device, const ConstantDecayExchange* exchange) {
  constexpr int kBytes = sizeof(ConstantDecayShared<E>);
  static_assert(kBytes <= 227 * 1024);
  if (passes.empty() || passes[0].sequences.count == 0) return;
  for (const auto kernel : {constant_decay_scan_kernel<E>, constant_decay_output_kernel<E>})
    GLADE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));

  ConstantDecay u{};
  u.count = static_cast<int>(passes.size());
  u.segments = plan.segments;
  u.blocks = plan.blocks;
  u.scan_blocks = plan.scan_blocks;
  u.exchange_pass = exchange ? exchange->pass : -1;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const ConstantDecayPass& p = u.passes[i] = passes[i];
    const auto map = [&](const Rows& rows) { return map_of(rows, tokens, std::int64_t{rows.heads} * rows.size); };
    u.maps[i] = {map(p.x), map(p.y), map(p.w),
                 p.float_out ? CUtensorMap{} : map_of({p.out, p.heads, 1, p.outer}, tokens, p.out_step)};
    u.forward += p.backward ? 0 : 1;
  }
  const std::int64_t blocks = std::int64_t{u.count} * u.blocks;
  const bool with_scan = plan.segments > 1 || exchange;
  const Scratch added_states(with_scan ? static_cast<std::size_t>(blocks) * kStateFloats * sizeof(float) : 0, device);
  u.added_states = added_states.data<float>();
  u.after_scan = with_scan && !exchange;
  const auto run = [&](void (*kernel)(ConstantDecay), std::int64_t blocks_of_pass, bool early) {
    const dim3 grid(static_cast<unsigned>(u.count * blocks_of_pass));
    launch_kernel(kernel, grid, kConstantDecayThreads, {kBytes, early}, stream(device), u);
  };
  if (with_scan) run(constant_decay_scan_kernel<E>, u.scan_blocks, starts_early());
  if (exchange) run_exchange(u, *exchange, device);
  run(constant_decay_output_kernel<E>, u.blocks, starts_early(u.after_scan));
}
template void run_constant_decay_passes<__nv_bfloat16>(std::span<const ConstantDecayPass>, std::int64_t, const ConstantDecayPlan&,
                                                       Device, const ConstantDecayExchange*);
template void run_constant_decay_passes<__half>(std::span<const ConstantDecayPass>, std::int64_t, const ConstantDecayPlan&,
                                                Device, const ConstantDecayExchange*);

}  // namespace glade::cuda::chunk_sm90
