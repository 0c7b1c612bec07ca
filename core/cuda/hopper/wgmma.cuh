#pragma once
// Products of a warp group on Hopper's tensor cores (wgmma). The left operand is 64 rows in shared memory or in registers, the
// right operand a tile in shared memory (core/cuda/hopper/tile.cuh), sums are float32.
#include <glade/core/cuda/hopper/tile.cuh>

namespace glade::cuda {

/// Every warp group of a kernel starts with the same number of registers. All threads of a group call one of these to have kCount
/// registers each from here on: groups that copy release some, and groups with large accumulators wait until enough are free.
template <int kCount>
__device__ void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

__device__ inline void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits for this warp group's groups of products, but for the last `Pending`. Where an accumulator is read or scaled while
/// products with other accumulators are pending, one of these must stand between, also if it waits for nothing: otherwise ptxas
/// inserts one that waits for all (its message C7517), or serializes all products of the kernel if that would be in a branch
/// (C7518).
template <int Pending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
/// Keeps the compiler from moving uses of the accumulator across a wait.
template <int N>
__device__ void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kColumns>
__device__ void pin(Accumulator<kColumns>& x) {
  pin(x.x);
}
/// The same for a left operand, whose registers pending products still read.
template <int N>
__device__ void pin(std::uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i])::"memory");
}
/// Keeps the compiler from holding what it computes from x in registers beyond this point.
__device__ inline void forget(int& x) { asm volatile("" : "+r"(x)); }
__device__ inline void forget(unsigned& x) { asm volatile("" : "+r"(x)); }
template <class T>
__device__ void forget(T*& x) {
  asm volatile("" : "+l"(x));
}

// Inline assembly needs every register by name: d, of 8, 16, 32, 64 or 128 a thread.
#define GLADE_OUTPUTS_8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define GLADE_OUTPUTS_16(d, i) GLADE_OUTPUTS_8(d, i), GLADE_OUTPUTS_8(d, i + 8)
#define GLADE_OUTPUTS_32(d, i) GLADE_OUTPUTS_16(d, i), GLADE_OUTPUTS_16(d, i + 16)
#define GLADE_OUTPUTS_64(d, i) GLADE_OUTPUTS_32(d, i), GLADE_OUTPUTS_32(d, i + 32)
#define GLADE_OUTPUTS_128(d, i) GLADE_OUTPUTS_64(d, i), GLADE_OUTPUTS_64(d, i + 64)
#define GLADE_REGISTERS_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define GLADE_REGISTERS_16 GLADE_REGISTERS_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define GLADE_REGISTERS_32 GLADE_REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GLADE_REGISTERS_64                                                                                        \
  GLADE_REGISTERS_32                                                                                              \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
  "%59,%60,%61,%62,%63"
#define GLADE_REGISTERS_128                                                                                         \
  GLADE_REGISTERS_64                                                                                                \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,"   \
  "%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114," \
  "%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// Both operands in shared memory: p, q, r are the numbers of the operands a, b and add, s and t those of transpose_a and
// transpose_b.
#define GLADE_WGMMA_SHARED(n, count, type, p, q, r, s, t)                                                                    \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #r ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" GLADE_REGISTERS_##count "}, %" #p ", %" #q ", p, 1, 1, %" #s ", %" #t ";\n}"                             \
               : GLADE_OUTPUTS_##count(d, 0)                                                                                 \
               : "l"(a), "l"(b), "r"(add), "n"(kTransposeA), "n"(kTransposeB))
// The left operand in registers, numbered from p to s.
#define GLADE_WGMMA_REGISTERS(n, count, type, p, q, r, s, t, u, v)                                                           \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #u ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" GLADE_REGISTERS_##count "}, {%" #p ",%" #q ",%" #r ",%" #s "}, %" #t ", p, 1, 1, %" #v ";\n}"            \
               : GLADE_OUTPUTS_##count(d, 0)                                                                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kTransposeB))

/// d = a b^T, or d += a b^T where `add` is not 0, for 16 columns of both; with kTransposeB, a b for 16 rows of b; with
/// kTransposeA, a^T b^T for 16 rows of a. Both operands are descriptors; the product has 16, 32, 64, 128 or 256 columns, rows of
/// b.
template <class E, int kTransposeB = 0, int kTransposeA = 0, int N>
__device__ void wgmma(float (&d)[N], std::uint64_t a, std::uint64_t b, int add) {
  static_assert(N == 8 || N == 16 || N == 32 || N == 64 || N == 128);
  if constexpr (N == 8) {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_SHARED(16, 8, "bf16", 8, 9, 10, 11, 12);
    else GLADE_WGMMA_SHARED(16, 8, "f16", 8, 9, 10, 11, 12);
  } else if constexpr (N == 16) {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_SHARED(32, 16, "bf16", 16, 17, 18, 19, 20);
    else GLADE_WGMMA_SHARED(32, 16, "f16", 16, 17, 18, 19, 20);
  } else if constexpr (N == 32) {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_SHARED(64, 32, "bf16", 32, 33, 34, 35, 36);
    else GLADE_WGMMA_SHARED(64, 32, "f16", 32, 33, 34, 35, 36);
  } else if constexpr (N == 64) {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_SHARED(128, 64, "bf16", 64, 65, 66, 67, 68);
    else GLADE_WGMMA_SHARED(128, 64, "f16", 64, 65, 66, 67, 68);
  } else {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_SHARED(256, 128, "bf16", 128, 129, 130, 131, 132);
    else GLADE_WGMMA_SHARED(256, 128, "f16", 128, 129, 130, 131, 132);
  }
}
/// The same with a's 64 rows and 16 columns in registers, as load_transposed and load_straight leave them.
template <class E, int kTransposeB = 0, int N>
__device__ void wgmma(float (&d)[N], const std::uint32_t (&a)[4], std::uint64_t b, int add) {
  static_assert(N == 16 || N == 32 || N == 64);
  if constexpr (N == 16) {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_REGISTERS(32, 16, "bf16", 16, 17, 18, 19, 20, 21, 22);
    else GLADE_WGMMA_REGISTERS(32, 16, "f16", 16, 17, 18, 19, 20, 21, 22);
  } else if constexpr (N == 32) {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_REGISTERS(64, 32, "bf16", 32, 33, 34, 35, 36, 37, 38);
    else GLADE_WGMMA_REGISTERS(64, 32, "f16", 32, 33, 34, 35, 36, 37, 38);
  } else {
    if constexpr (kIsBfloat16<E>) GLADE_WGMMA_REGISTERS(128, 64, "bf16", 64, 65, 66, 67, 68, 69, 70);
    else GLADE_WGMMA_REGISTERS(128, 64, "f16", 64, 65, 66, 67, 68, 69, 70);
  }
}

template <class E, int kTransposeB = 0, int kTransposeA = 0, int kColumns>
__device__ void wgmma(Accumulator<kColumns>& d, std::uint64_t a, std::uint64_t b, int add) {
  wgmma<E, kTransposeB, kTransposeA>(d.x, a, b, add);
}
template <class E, int kTransposeB = 0, int kColumns>
__device__ void wgmma(Accumulator<kColumns>& d, const LeftOperand& a, std::uint64_t b, int add) {
  wgmma<E, kTransposeB>(d.x, a, b, add);
}

#undef GLADE_OUTPUTS_8
#undef GLADE_OUTPUTS_16
#undef GLADE_OUTPUTS_32
#undef GLADE_OUTPUTS_64
#undef GLADE_OUTPUTS_128
#undef GLADE_REGISTERS_8
#undef GLADE_REGISTERS_16
#undef GLADE_REGISTERS_32
#undef GLADE_REGISTERS_64
#undef GLADE_REGISTERS_128
#undef GLADE_WGMMA_SHARED
#undef GLADE_WGMMA_REGISTERS

}  // namespace glade::cuda
