#pragma once
// Hopper's instructions for tiles copied by the hardware (TMA), and for products with 128 columns. See core/cuda/hopper.cuh for
// the others.
#include <cuda.h>
#include <glade/ops/linear_attention/chunk_wgmma.cuh>

namespace glade::cuda::passes {

/// 64 channels of 64 tokens, zeros outside the tensor.
template <class E>
__device__ void copy_tile(SwizzledTile<E>& target, const CUtensorMap& map, int channel, int head, int token,
                          std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
          shared_address(&target)),
      "l"(&map), "r"(channel), "r"(head), "r"(token), "r"(shared_address(barrier))
      : "memory");
}
/// 64 channels of 64 tokens to a tensor. The copies of a thread up to commit_stores are waited for by wait_stores.
template <class E>
__device__ void store_tile(const SwizzledTile<E>& source, const CUtensorMap& map, int channel, int head, int token) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(channel),
               "r"(head), "r"(token), "r"(shared_address(&source))
               : "memory");
}
/// `bytes`, a multiple of 16, as they lie.
__device__ inline void store_bytes(void* target, const void* source, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(shared_address(source)),
               "r"(bytes)
               : "memory");
}
__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until what they read may be overwritten.
__device__ inline void wait_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// For right operands of 128 columns in two tiles side by side, whose rows are summed over. Where operand() has the distance of
/// tiles that others need, that of those two comes.
__device__ inline std::uint64_t wide_descriptor(std::uint32_t operand, int step) {
  constexpr std::uint32_t kAddress = (1u << 14) - 1, kNextTile = kTileStep << 16;
  return descriptor((operand & kAddress) | kNextTile, step);
}

#define GLADE_OUTPUTS_16(d, i)                                                                                                \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7]), \
      "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]), "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]),    \
      "+f"(d[i + 15])
#define GLADE_OUTPUTS_64(d) GLADE_OUTPUTS_16(d, 0), GLADE_OUTPUTS_16(d, 16), GLADE_OUTPUTS_16(d, 32), GLADE_OUTPUTS_16(d, 48)
#define GLADE_REGISTERS_64                                                                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"  \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61," \
  "%62,%63}"
#define GLADE_WGMMA_REGISTERS_128(type)                                                            \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " " GLADE_REGISTERS_64 \
               ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n"                                           \
               : GLADE_OUTPUTS_64(d)                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/// d += a b for 16 rows of b (wide_descriptor).
template <class E>
__device__ void wgmma_wide(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b) {
  if constexpr (std::is_same_v<E, __nv_bfloat16>) GLADE_WGMMA_REGISTERS_128("bf16");
  else GLADE_WGMMA_REGISTERS_128("f16");
}
#undef GLADE_OUTPUTS_16
#undef GLADE_OUTPUTS_64
#undef GLADE_REGISTERS_64
#undef GLADE_WGMMA_REGISTERS_128

}  // namespace glade::cuda::passes
