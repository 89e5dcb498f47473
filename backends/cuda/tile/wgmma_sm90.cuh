// wgmma: matrix products of the four warps of a warpgroup. d [64, N] is set to a [64, 16]·b [16, N], or this
// product is added to d. Sums are f32, operands bf16 or f16. The instruction is asynchronous, and
// `wgmma_wait` waits for it. Inline assembly has no loops. The widths that kernels use are therefore listed
// below. The emulator supports any width.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/tile/ptx_sm90.cuh"

namespace tg::cuda::ptx {

using u64 = std::uint64_t;

// Required before the first wgmma that uses registers written by ordinary instructions.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Commits the warpgroup's matrix products since the last call as a group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all except the last `Pending` groups are complete.
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Warp w of the warpgroup has rows 16·w … of d. In the lanes, it has the layout of an Accumulator<16, N>. An
// operand in shared memory is given by a descriptor (shared_sm90.cuh). It may be transposed (`ta`, `tb`).
template <class S, int N>
struct Wgmma;

// clang-format off
#define TG_D0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TG_D1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TG_D2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define TG_D3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define TG_D4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TG_D5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TG_D6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TG_D7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TG_D8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define TG_D9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define TG_D10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define TG_D11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define TG_D12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define TG_D13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define TG_D14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define TG_D15 ",%120,%121,%122,%123,%124,%125,%126,%127"
// The names of the sums for n groups of 16 columns, and their operands.
#define TG_NAMES_1 TG_D0
#define TG_NAMES_2 TG_D0 TG_D1
#define TG_NAMES_3 TG_NAMES_2 TG_D2
#define TG_NAMES_4 TG_NAMES_3 TG_D3
#define TG_NAMES_5 TG_NAMES_4 TG_D4
#define TG_NAMES_6 TG_NAMES_5 TG_D5
#define TG_NAMES_8 TG_NAMES_6 TG_D6 TG_D7
#define TG_NAMES_12 TG_NAMES_8 TG_D8 TG_D9 TG_D10 TG_D11
#define TG_NAMES_16 TG_NAMES_12 TG_D12 TG_D13 TG_D14 TG_D15
#define TG_PART(k, p) k(d[p][0]), k(d[p][1]), k(d[p][2]), k(d[p][3])
#define TG_FOUR(k, p) TG_PART(k, p), TG_PART(k, p + 1), TG_PART(k, p + 2), TG_PART(k, p + 3)
#define TG_SUMS_1(k) TG_PART(k, 0), TG_PART(k, 1)
#define TG_SUMS_2(k) TG_FOUR(k, 0)
#define TG_SUMS_3(k) TG_FOUR(k, 0), TG_PART(k, 4), TG_PART(k, 5)
#define TG_SUMS_4(k) TG_FOUR(k, 0), TG_FOUR(k, 4)
#define TG_SUMS_5(k) TG_SUMS_4(k), TG_PART(k, 8), TG_PART(k, 9)
#define TG_SUMS_6(k) TG_SUMS_4(k), TG_FOUR(k, 8)
#define TG_SUMS_8(k) TG_SUMS_6(k), TG_FOUR(k, 12)
#define TG_SUMS_12(k) TG_SUMS_8(k), TG_FOUR(k, 16), TG_FOUR(k, 20)
#define TG_SUMS_16(k) TG_SUMS_12(k), TG_FOUR(k, 24), TG_FOUR(k, 28)

#define TG_PRODUCT(type, N, n)                                                                               \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" TG_NAMES_##n "}, "
// N is 16·n columns. The other arguments are the numbers of the operands that follow the 8·n sums.
#define TG_WGMMA(S, type, N, n, A, B, C, D, E, F)                                                            \
  template <>                                                                                                \
  struct Wgmma<S, N> {                                                                                       \
    /* d = a·b, both in shared memory. */                                                                    \
    template <bool ta, bool tb>                                                                              \
    static __device__ __forceinline__ void begin(float (&d)[N / 8][4], u64 a, u64 b) {                       \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n" TG_PRODUCT(type, N, n)                     \
                   "%" #A ", %" #B ", add, 1, 1, %" #C ", %" #D ";\n}"                                       \
                   : TG_SUMS_##n("=f") : "l"(a), "l"(b), "n"(ta), "n"(tb));                                  \
    }                                                                                                        \
    /* d += a·b */                                                                                           \
    template <bool ta, bool tb>                                                                              \
    static __device__ __forceinline__ void add(float (&d)[N / 8][4], u64 a, u64 b) {                         \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n" TG_PRODUCT(type, N, n)                     \
                   "%" #A ", %" #B ", add, 1, 1, %" #C ", %" #D ";\n}"                                       \
                   : TG_SUMS_##n("+f") : "l"(a), "l"(b), "n"(ta), "n"(tb));                                  \
    }                                                                                                        \
    /* d = a·b and d += a·b, with a in registers: each warp has its rows, as in mma_m16n8k16. */             \
    template <bool tb>                                                                                       \
    static __device__ __forceinline__ void begin(float (&d)[N / 8][4], const u32 (&a)[4], u64 b) {           \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 0, 0;\n" TG_PRODUCT(type, N, n)                     \
                   "{%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", add, 1, 1, %" #F ";\n}"                   \
                   : TG_SUMS_##n("=f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(tb));       \
    }                                                                                                        \
    template <bool tb>                                                                                       \
    static __device__ __forceinline__ void add(float (&d)[N / 8][4], const u32 (&a)[4], u64 b) {             \
      asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n" TG_PRODUCT(type, N, n)                     \
                   "{%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", add, 1, 1, %" #F ";\n}"                   \
                   : TG_SUMS_##n("+f") : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(tb));       \
    }                                                                                                        \
  };
#define TG_WIDTHS(S, type)                                                                                   \
  TG_WGMMA(S, type, 16, 1, 8, 9, 10, 11, 12, 13)                                                             \
  TG_WGMMA(S, type, 32, 2, 16, 17, 18, 19, 20, 21)                                                           \
  TG_WGMMA(S, type, 48, 3, 24, 25, 26, 27, 28, 29)                                                           \
  TG_WGMMA(S, type, 64, 4, 32, 33, 34, 35, 36, 37)                                                           \
  TG_WGMMA(S, type, 80, 5, 40, 41, 42, 43, 44, 45)                                                           \
  TG_WGMMA(S, type, 96, 6, 48, 49, 50, 51, 52, 53)                                                           \
  TG_WGMMA(S, type, 128, 8, 64, 65, 66, 67, 68, 69)                                                          \
  TG_WGMMA(S, type, 192, 12, 96, 97, 98, 99, 100, 101)                                                       \
  TG_WGMMA(S, type, 256, 16, 128, 129, 130, 131, 132, 133)
TG_WIDTHS(__nv_bfloat16, "bf16")
TG_WIDTHS(__half, "f16")
// clang-format on

}  // namespace tg::cuda::ptx
