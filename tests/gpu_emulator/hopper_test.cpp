// Tests the emulation of Hopper's instructions. Correct kernels must give correct results. If a fence, wait,
// arrival or release is removed or added, the emulator must detect the mistake.
#include <cmath>
#include <type_traits>
#include <vector>

#include "backends/cuda/attention/stages/key_source_sm90.cuh"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"
#include "tests/gpu_emulator/early_reads.h"
#include "tests/gpu_emulator/hopper_kernels.h"

namespace tg::cuda {
namespace {

using ptx::u32, ptx::u64;
using tile::Accumulator, tile::Packed, tile::Ring, tile::SwizzledTile;

// ---- tensor maps and bulk copies ----

TEST(Hopper, TensorMapsAreRefusedAsByTheDriver) {
  Matrix m(64, 64, 0);
  EXPECT_EQ(Map(m, 64).encode(), CUDA_SUCCESS);
  const auto with = [&](auto change) {
    Map map(m, 64);
    change(map);
    return map.encode();
  };
  EXPECT_NE(with([](Map& x) { x.data = static_cast<char*>(x.data) + 8; }), CUDA_SUCCESS);
  EXPECT_NE(with([](Map& x) { x.stride[0] += 8; }), CUDA_SUCCESS);
  EXPECT_NE(with([](Map& x) { x.stride[1] = 0; }), CUDA_SUCCESS);
  EXPECT_NE(with([](Map& x) { x.box[1] = 257; }), CUDA_SUCCESS);
  EXPECT_NE(with([](Map& x) { x.box[0] = 128; }), CUDA_SUCCESS);  // the box is wider than the swizzle
  EXPECT_NE(with([](Map& x) { x.size[3] = 0; }), CUDA_SUCCESS);
}

using Tile = SwizzledTile<64, 64>;
constexpr int barriers = 64 << 10;  // offset of the barriers in shared memory

enum class Copy {
  right,
  no_init,
  no_init_fence,
  no_init_barrier,
  no_wait,
  too_few_bytes,
  too_many_bytes,
  misaligned,
  no_map,
  twice,
  below
};
// Copies a box to shared memory. Then copies the bytes in memory order to `out`.
__global__ void copy_box(const CUtensorMap* map, Half* out, int row, Copy how) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory), barrier = how == Copy::below ? base - 8 : base + barriers;
  if (threadIdx.x == 0 && how != Copy::no_init) {
    ptx::mbarrier_init(barrier, 1);
    if (how != Copy::no_init_fence) ptx::fence_mbarrier_init();
  }
  if (how != Copy::no_init_barrier) __syncthreads();
  if (threadIdx.x == 32) {
    const int bytes = how == Copy::too_few_bytes ? 4096 : how == Copy::too_many_bytes ? 16384 : Tile::bytes;
    ptx::mbarrier_arrive_expect(barrier, bytes);
    if (how == Copy::twice) ptx::mbarrier_arrive(barrier);
    const CUtensorMap none{};
    ptx::tma_load(base + (how == Copy::misaligned ? 16 : 0), how == Copy::no_map ? &none : map, barrier, 0,
                  row, 0, 0);
  }
  if (how != Copy::no_wait) ptx::mbarrier_wait(barrier, 0);
  for (int n = static_cast<int>(threadIdx.x); n < 64 * 64; n += 64)
    out[n] = reinterpret_cast<const Half*>(memory)[n];
}

TEST(Hopper, ACopyHasTheSwizzleAndZerosOutside) {
  Matrix m(100, 40, 3);
  const CUtensorMap map = Map(m, 64).encoded();
  std::vector<Half> out(64 * 64);
  EXPECT_EQ(run(copy_box, 64, &map, out.data(), 80, Copy::right), "");
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < 64; ++j) {
      const float x = out[static_cast<std::size_t>(Tile::offset(i, j / 8) / 2 + j % 8)];
      EXPECT_EQ(x, 80 + i < 100 && j < 40 ? m(80 + i, j) : 0) << i << ", " << j;
    }
  EXPECT_EQ(run(copy_box, 64, &map, out.data(), -3, Copy::right), "");
  EXPECT_EQ(float(out[static_cast<std::size_t>(Tile::offset(2, 0) / 2)]), 0);
  EXPECT_EQ(float(out[static_cast<std::size_t>(Tile::offset(3, 0) / 2)]), m(0, 0));
}

TEST(Hopper, MistakesWithACopyAreFound) {
  Matrix m(64, 64, 0);
  const CUtensorMap map = Map(m, 64).encoded();
  std::vector<Half> out(64 * 64);
  const auto fault = [&](Copy how) { return run(copy_box, 64, &map, out.data(), 0, how); };
  EXPECT_FAULT(fault(Copy::no_init), "not initialised");
  EXPECT_FAULT(fault(Copy::no_init_fence), "no fence_mbarrier_init");
  EXPECT_FAULT(fault(Copy::below), "is not in dynamic shared memory");
  EXPECT_FAULT(fault(Copy::no_init_barrier), "no barrier after its initialisation");
  EXPECT_FAULT(fault(Copy::no_wait), "a bulk copy");
  EXPECT_FAULT(fault(Copy::too_few_bytes), "lacks 0 of 1 arrivals and -4096 of 4096 bytes");
  EXPECT_FAULT(fault(Copy::too_many_bytes), "lacks 0 of 1 arrivals and 8192 of 16384 bytes (threads 0 … 63)");
  EXPECT_FAULT(fault(Copy::misaligned), "not a multiple of 128");
  EXPECT_FAULT(fault(Copy::no_map), "has not made");
  EXPECT_FAULT(fault(Copy::twice), "an arrival too many");
}

// A warp stores its rows through shared memory. Element (i, j) is i + j / 8.
enum class Storing { right, no_fence, no_wait };
__global__ void store_rows(const CUtensorMap* map, int row0, Storing how) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const tile::SwizzledTile<16, 64> through{ptx::shared_address(memory)};
  tile::Accumulator<16, 64> c;
  tile::for_each(c, [&](int r, int k, float& e) {
    e = static_cast<float>(c.row(r) + tile::lane_row() + (c.column(k) + tile::lane_column()) / 8);
  });
  if (how == Storing::right) {
    attention::store_boxes<Half>(c, through, 0, *map, row0, 0, 0);
    if (threadIdx.x == 0) ptx::wait_for_stores();
    return;
  }
  ptx::fence_async();  // makes the previous reads visible
  ptx::st_shared_v4(through.base + threadIdx.x * 16, {0, 0, 0, 0});
  if (how != Storing::no_fence) ptx::fence_async();
  __syncwarp();
  if (threadIdx.x == 0) ptx::tma_store(map, through.base, 0, row0, 0, 0), ptx::commit_stores();
  if (threadIdx.x == 0 && how != Storing::no_wait) ptx::wait_for_stores();
}

TEST(Hopper, AStoreWritesOnlyInsideTheTensor) {
  Matrix m(100, 40, 3);
  const Matrix before = m;
  const CUtensorMap map = Map(m, 16).encoded();
  EXPECT_EQ(run(store_rows, 32, &map, 90, Storing::right), "");
  for (int i = 0; i < 100; ++i)
    for (int j = 0; j < 40; ++j)
      EXPECT_EQ(m(i, j), i < 90 ? before(i, j) : static_cast<float>(i - 90 + j / 8)) << i << ", " << j;
  EXPECT_FAULT(run(store_rows, 32, &map, 90, Storing::no_fence), "no fence_async");
  EXPECT_FAULT(run(store_rows, 32, &map, 90, Storing::no_wait), "has not waited for its stores");
}

// Copies consecutive bytes. One of two threads waits for the copy. Then a barrier makes the other thread
// wait, or this barrier is missing.
__global__ void copy_line(const float* from, float* out, int bytes, bool barrier_after) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory), barrier = base + barriers;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(barrier, bytes);
    ptx::bulk_load(base, from, bytes, barrier);
    ptx::mbarrier_wait(barrier, 0);
  }
  if (barrier_after) __syncthreads();
  out[threadIdx.x] = reinterpret_cast<const float*>(memory)[threadIdx.x];
}
TEST(Hopper, ABulkCopyOfALineArrivesForThreadsThatHaveWaited) {
  alignas(16) const float from[4] = {1, 2, 3, 4};
  float out[4];
  EXPECT_EQ(run(copy_line, 4, from, out, 16, true), "");
  EXPECT_EQ(out[3], 4);
  EXPECT_FAULT(run(copy_line, 4, from, out, 16, false), "a read before a bulk copy has arrived");
  EXPECT_FAULT(run(copy_line, 4, from, out, 8, true), "multiple of 16");
}

// ---- a ring of stages ----

enum class Stage { right, no_acquire, no_wait, no_release, early_release, release_by_a_lane, no_expect };
// A producer warp copies 6 tiles through 2 stages to a consumer warp. The consumer sums the first element of
// each row.
__global__ void pass_tiles(const CUtensorMap* map, float* out, Stage how) {
  TG_DYNAMIC_SHARED(memory, 1024);
  constexpr u32 tiles = 6;
  const u32 base = ptx::shared_address(memory);
  const Ring<2> ring{base + barriers};
  if (threadIdx.x == 0) ring.init(1), ptx::fence_mbarrier_init();
  __syncthreads();
  if (threadIdx.x < 32) {
    for (u32 n = 0; n < tiles; ++n) {
      if (how != Stage::no_acquire) ring.acquire(n);
      if (threadIdx.x == 0) {
        if (how != Stage::no_expect) ring.expect(n, 8192);
        ptx::tma_load(base + ring.stage(n) * 8192, map, ring.full(n), 0, static_cast<int>(n) * 64, 0, 0);
      }
    }
  } else {
    float sum = 0;
    for (u32 n = 0; n < tiles; ++n) {
      if (how != Stage::no_wait) ring.wait(n);
      if (how == Stage::early_release) ring.release(n);
      const unsigned char* const stage = memory + ring.stage(n) * 8192;
      for (int row = static_cast<int>(threadIdx.x % 32); row < 64; row += 32)
        sum += *reinterpret_cast<const Half*>(stage + Tile::offset(row, 0));
      if (how == Stage::right || how == Stage::no_wait || how == Stage::no_acquire || how == Stage::no_expect)
        ring.release(n);
      if (how == Stage::release_by_a_lane && threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.empty(n));
    }
    out[threadIdx.x % 32] = sum;
  }
}
TEST(Hopper, MistakesWithStagesAreFound) {
  Matrix m(6 * 64, 64, 5);
  const CUtensorMap map = Map(m, 64).encoded();
  float out[32];
  const auto fault = [&](Stage how) { return run(pass_tiles, 64, &map, out, how); };
  EXPECT_EQ(fault(Stage::right), "");
  float sum = 0;
  for (int n = 0; n < 12; ++n) sum += m(32 * n + 5, 0);
  EXPECT_EQ(out[5], sum);
  EXPECT_FAULT(fault(Stage::no_acquire), "an arrival too many");
  EXPECT_FAULT(fault(Stage::no_wait), "a read before a bulk copy has arrived");
  EXPECT_FAULT(fault(Stage::no_release), "which lacks 1 of 1 arrivals and 0 of 0 bytes");
  EXPECT_FAULT(fault(Stage::early_release), "in byte");
  EXPECT_NE(fault(Stage::release_by_a_lane), "");
  EXPECT_FAULT(fault(Stage::no_expect), "wait for others that never arrive");
}

// ---- wgmma ----

// The memory layout of operands.
struct Form {
  bool a_transposed, b_transposed, a_in_registers;
};
enum class Mistake {
  none,
  no_fence,
  no_commit,
  no_wait,
  no_async_fence,
  no_barrier,
  sums_read,
  sums_written,
  not_kept,
  a_written,
  half_the_warps,
  early_release,
  misaligned
};

// Stores an operand in a tile, transposed or not. All threads use ordinary stores.
template <class To>
void put(To to, const Half* from, int rows, int columns, bool transposed) {
  for (int n = static_cast<int>(threadIdx.x); n < rows * columns; n += static_cast<int>(blockDim.x)) {
    const int r = n / columns, c = n % columns, i = transposed ? c : r, j = transposed ? r : c;
    *reinterpret_cast<Half*>(emulator::shared_pointer(to.base + To::offset(i, j / 8) + j % 8 * 2)) = from[n];
  }
}

// Computes c [64, N] = a [64, 64]·b [64, N] twice. The second product is added to the first.
template <int N>
__global__ void multiply(const Half* a, const Half* b, float* c, Form form, Mistake mistake) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory);
  const SwizzledTile<64, 64> left{base};
  const SwizzledTile<N, 64> right{base + 8192};                     // bᵀ: rows are columns of b
  const SwizzledTile<64, (N + 63) / 64 * 64> right_t{base + 8192};  // b
  put(left, a, 64, 64, form.a_transposed);
  if (form.b_transposed)
    put(right_t, b, 64, N, false);
  else
    put(right, b, 64, N, true);
  if (mistake != Mistake::no_async_fence) ptx::fence_async();
  if (mistake != Mistake::no_barrier) __syncthreads();
  if (mistake == Mistake::half_the_warps && threadIdx.x >= 64) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Packed<64> p;
  for (int k = 0; k < 4; ++k)
    for (int e = 0; e < 4; ++e) {
      const int i = warp * 16 + lane / 4 + e % 2 * 8, j = 16 * k + lane % 4 * 2 + e / 2 * 8;
      p.x[k][e] = ptx::two<Half>(a[i * 64 + j], a[i * 64 + j + 1]);
    }
  Accumulator<16, N> d;
  d.fill(1);
  using P = ptx::Wgmma<Half, N>;
  if (mistake != Mistake::no_fence) ptx::wgmma_fence();
  for (int round = 0; round < 2; ++round)
    for (int k = 0; k < 4; ++k) {
      const u64 x = mistake == Mistake::misaligned ? left.along_columns(0, k) + 8
                    : form.a_transposed            ? left.along_rows(0, k)
                                                   : left.along_columns(0, k),
                y = form.b_transposed ? right_t.along_rows(0, k) : right.along_columns(0, k);
      const auto product = [&]<bool ta, bool tb>(std::bool_constant<ta>, std::bool_constant<tb>) {
        if (form.a_in_registers)
          P::template add<tb>(d.x[0], p.x[k], y);
        else if (k == 0 && round == 0)
          P::template begin<ta, tb>(d.x[0], x, y);
        else
          P::template add<ta, tb>(d.x[0], x, y);
      };
      const auto choose = [&](auto ta) {
        form.b_transposed ? product(ta, std::true_type()) : product(ta, std::false_type());
      };
      form.a_transposed ? choose(std::true_type()) : choose(std::false_type());
    }
  if (mistake != Mistake::no_commit) ptx::wgmma_commit();
  if (mistake == Mistake::sums_read) c[0] = d.x[0][0][0];
  if (mistake == Mistake::sums_written) d.x[0][1][2] = 0;
  if (mistake == Mistake::a_written) p.x[1][1] = 7;
  if (mistake == Mistake::early_release) __syncthreads(), put(left, a, 64, 64, form.a_transposed);
  if (mistake != Mistake::no_wait) ptx::wgmma_wait<0>();
  if (mistake == Mistake::not_kept) c[0] = d.x[0][0][0];
  if (mistake == Mistake::sums_read || mistake == Mistake::not_kept) return;
  tile::keep(d);
  for_each(d, [&](int r, int column, float& e) {
    c[(warp * 16 + d.row(r) + tile::lane_row()) * N + d.column(column) + tile::lane_column()] = e;
  });
}

template <int N>
void expect_product(Form form) {
  Matrix a(64, 64, 1), b(64, N, 2);
  std::vector<float> c(64 * N);
  EXPECT_EQ(run(multiply<N>, 128, a.x.data(), b.x.data(), c.data(), form, Mistake::none), "");
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < N; ++j) {
      float sum = form.a_in_registers ? 1 : 0;
      for (int k = 0; k < 64; ++k) sum += 2 * a(i, k) * b(k, j);
      ASSERT_EQ(c[static_cast<std::size_t>(i * N + j)], sum) << i << ", " << j;
    }
}
TEST(Hopper, WgmmaMultipliesOperandsOfEveryForm) {
  for (const bool ta : {false, true})
    for (const bool tb : {false, true})
      for (const bool registers : {false, true}) {
        if (ta && registers) continue;
        expect_product<64>({ta, tb, registers});
        expect_product<80>({ta, tb, registers});
        expect_product<128>({ta, tb, registers});
        expect_product<256>({ta, tb, registers});
      }
}
TEST(Hopper, MistakesWithWgmmaAreFound) {
  Matrix a(64, 64, 1), b(64, 64, 2);
  std::vector<float> c(64 * 64);
  const auto fault = [&](Mistake m, bool registers = false) {
    return run(multiply<64>, 128, a.x.data(), b.x.data(), c.data(), {false, false, registers}, m);
  };
  EXPECT_FAULT(fault(Mistake::no_fence), "no wgmma_fence");
  EXPECT_FAULT(fault(Mistake::no_commit), "ends before the products");
  EXPECT_FAULT(fault(Mistake::no_wait), "ends before the products");
  EXPECT_FAULT(fault(Mistake::no_async_fence), "wrote it with no fence_async");
  EXPECT_FAULT(fault(Mistake::no_barrier), "wrote it, with no barrier");
  EXPECT_EQ(fault(Mistake::sums_read), "");
  EXPECT_TRUE(std::isnan(c[0]));
  EXPECT_EQ(fault(Mistake::not_kept), "");
  EXPECT_TRUE(std::isnan(c[0]));
  EXPECT_FAULT(fault(Mistake::sums_written), "accumulators were written");
  EXPECT_FAULT(fault(Mistake::a_written, true), "operand a of wgmma was written");
  EXPECT_FAULT(fault(Mistake::half_the_warps), "have not issued");
  EXPECT_FAULT(fault(Mistake::early_release), "wgmma");
  EXPECT_FAULT(fault(Mistake::misaligned), "does not begin at the first of the 8 rows");
}

// Issues two dependent wgmma. Between them, ordinary code changes the sums or operand a. A fence follows this
// change, or it is missing.
__global__ void multiply_again(bool fenced, bool changes_sums, bool changes_a) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const SwizzledTile<64, 64> right{ptx::shared_address(memory)};
  Packed<16> a{{{0, 0, 0, 0}}};
  Accumulator<16, 64> d;
  d.fill(0);
  ptx::wgmma_fence();
  for (int n = 0; n < 2; ++n) {
    if (n == 1 && changes_sums) scale(d, 0.5f), d.x[0][0][0] = 3;
    if (n == 1 && changes_a) a.x[0][1] = 0x3f803f80;
    if (n == 1 && fenced) ptx::wgmma_fence();
    ptx::Wgmma<Half, 64>::add<false>(d.x[0], a.x[0], right.along_columns(0, 0));
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    if (changes_sums) tile::keep(d);  // consecutive wgmma to the same sums need no fence
  }
}
TEST(Hopper, WgmmaAfterOrdinaryWritesOfItsRegistersNeedsAFence) {
  EXPECT_EQ(run(multiply_again, 128, true, true, true), "");
  EXPECT_EQ(run(multiply_again, 128, false, false, false), "");
  EXPECT_FAULT(run(multiply_again, 128, false, true, false), "have written its accumulators");
  EXPECT_FAULT(run(multiply_again, 128, false, false, true), "have written operand a");
}

// Issues two groups of wgmma and waits for the first group. Then it overwrites an operand of the first or the
// second group.
__global__ void overwrite_an_operand(bool of_the_second) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory);
  const SwizzledTile<64, 64> tile[2] = {{base}, {base + 8192}};
  Accumulator<16, 64> d[2];
  for (int n = 0; n < 2; ++n) {
    ptx::wgmma_fence();
    ptx::Wgmma<Half, 64>::begin<false, false>(d[n].x[0], tile[n].along_columns(0, 0),
                                              tile[n].along_columns(0, 0));
    ptx::wgmma_commit();
  }
  ptx::wgmma_wait<1>();
  __syncthreads();
  ptx::st_shared_v4(tile[of_the_second].base + threadIdx.x * 16, uint4{});
  ptx::wgmma_wait<0>();
}
TEST(Hopper, AnOperandOfWgmmaInFlightMustNotChange) {
  EXPECT_EQ(run(overwrite_an_operand, 128, false), "");
  EXPECT_NE(run(overwrite_an_operand, 128, true), "");
}

// ---- named barriers ----

// Each of two warpgroups writes a number, signals the other warpgroup and reads the other number. It does
// this three times.
enum class Exchange { right, one_barrier, no_alternation, other_count, no_sync };
__global__ void exchange(int* out, Exchange how) {
  __shared__ int x[2][2][128];
  const int group = static_cast<int>(threadIdx.x) / 128, i = static_cast<int>(threadIdx.x) % 128;
  const auto id = [&](int of, int n) {
    return how == Exchange::one_barrier ? 1 : how == Exchange::no_alternation ? 1 + of : 1 + of + n % 2 * 2;
  };
  int sum = 0;
  for (int n = 0; n < 4; ++n) {
    x[n % 2][group][i] = n;
    ptx::bar_arrive(id(group ^ 1, n), 256);
    // The first warpgroup is fast, the second slow.
    if (how != Exchange::no_sync)
      ptx::bar_sync(id(group, n), how == Exchange::other_count && group == 1 ? 128 : 256);
    sum += x[n % 2][group ^ 1][(i + 32) % 128];
  }
  out[threadIdx.x] = sum;
}
TEST(Hopper, MistakesWithNamedBarriersAreFound) {
  std::vector<int> out(256);
  const auto fault = [&](Exchange how) { return run(exchange, 256, out.data(), how); };
  EXPECT_EQ(fault(Exchange::right), "");
  EXPECT_EQ(out[17], 6);
  EXPECT_NE(fault(Exchange::one_barrier), "");
  EXPECT_FAULT(fault(Exchange::other_count), "is used for 128 threads, and for 256");
  EXPECT_NE(fault(Exchange::no_sync), "");
}

// The first warpgroup arrives twice before the second one syncs. Two arrivals of 128 threads end the phase
// without the second warpgroup.
__global__ void arrive_ahead(bool alternates) {
  if (threadIdx.x < 128) {
    ptx::bar_arrive(1, 256);
    ptx::bar_arrive(alternates ? 2 : 1, 256);
  } else {
    ptx::bar_sync(1, 256);
    ptx::bar_sync(alternates ? 2 : 1, 256);
  }
}
TEST(Hopper, AnEarlyArrivalEndsThePhaseOfTheOtherWarpgroup) {
  EXPECT_EQ(run(arrive_ahead, 256, true), "");
  EXPECT_FAULT(run(arrive_ahead, 256, false), "at barrier 1, which has");
}

// An arrival does not order later reads by the same thread.
__global__ void read_after_arrival(int* out, bool syncs) {
  __shared__ int x[64];
  x[threadIdx.x] = 1;
  if (threadIdx.x < 32 && !syncs)
    ptx::bar_arrive(1, 64);
  else
    ptx::bar_sync(1, 64);
  out[threadIdx.x] = x[threadIdx.x ^ 32];
}
TEST(Hopper, OnlyThreadsThatSyncMayReadWritesOfOthers) {
  int out[64];
  EXPECT_EQ(run(read_after_arrival, 64, out, true), "");
  EXPECT_NE(run(read_after_arrival, 64, out, false), "");
}

// ---- registers ----

template <int Few, int Many>
__global__ void hand_over() {
  if (threadIdx.x < 128)
    ptx::give_registers<Few>();
  else
    ptx::take_registers<Many>();
}
__global__ void give_by_a_warp() {
  ptx::wgmma_wait<0>();
  if (threadIdx.x < 32) ptx::give_registers<24>();
}
TEST(Hopper, WarpsCannotAcquireMoreRegistersThanReleased) {
  EXPECT_EQ(run(hand_over<24, 240>, 384), "");
  EXPECT_EQ(run(hand_over<32, 160>, 512), "");
  EXPECT_FAULT(run(hand_over<40, 240>, 384), "registers are left");
  EXPECT_FAULT(run(hand_over<32, 168>, 512), "registers are left");
  EXPECT_FAULT(run(hand_over<20, 240>, 384), "setmaxnreg to 20");
  EXPECT_FAULT(run(hand_over<240, 24>, 384), "setmaxnreg from 168");
  EXPECT_FAULT(run(give_by_a_warp, 128), "different numbers of registers");
}

// ---- memory ----

// Stores a 32 × 8 part of a matrix from registers, transposed.
__global__ void store_transposed(u32* out) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory);
  u32 x[4];
  for (u32 n = 0; n < 4; ++n) {
    const u32 e = n * 64 + threadIdx.x / 4 + threadIdx.x % 4 * 16;  // (r, c) is number 8·r + c
    x[n] = e | (e + 8) << 16;
  }
  ptx::stmatrix_trans(base + threadIdx.x * 16, x);
  __syncwarp();
  for (u32 n = threadIdx.x; n < 128; n += 32) out[n] = reinterpret_cast<const u32*>(memory)[n];
}
TEST(Hopper, StmatrixTransposes) {
  u32 out[128];
  EXPECT_EQ(run(store_transposed, 32, out), "");
  for (u32 n = 0; n < 128; ++n) EXPECT_EQ(out[n], 2 * n | (2 * n + 1) << 16);
}

__global__ void transpose_words(u32* out) {
  const u32 e = threadIdx.x * 2;  // (r, c) is number 8·r + c
  out[threadIdx.x] = ptx::transpose_8x8(e | (e + 1) << 16);
}
TEST(Hopper, RegistersOfAWarpAreTransposed) {
  u32 out[32];
  EXPECT_EQ(run(transpose_words, 32, out), "");
  for (u32 n = 0; n < 32; ++n) {
    const u32 r = n / 4, c = n % 4 * 2;
    EXPECT_EQ(out[n], (8 * c + r) | (8 * (c + 1) + r) << 16);
  }
}

__global__ void add_one(int* x, bool waits) {
  if (waits) ptx::wait_for_kernel_before();
  if (threadIdx.x == 0) ++*x;
}
TEST(Hopper, AKernelThatMayBeginEarlyWaitsForThePreviousOne) {
  const Gpu gpu{};
  LaunchShape shape{1, 32};
  int x = 0;
  const auto launch = [&](bool early, bool waits) {
    shape.early = early;
    launch_kernel({nullptr, gpu, nullptr, {}}, shape, add_one, &x, waits);
    return cudaGetLastError();
  };
  EXPECT_EQ(launch(false, false), cudaSuccess);
  EXPECT_EQ(launch(true, true), cudaSuccess);
  EXPECT_EQ(x, 2);
  EXPECT_EQ(launch(true, false), cudaErrorLaunchFailure);
}

__global__ void copy_early(const int* from, int* to, bool waits_first) {
  if (waits_first) ptx::wait_for_kernel_before();
  const int x = from[threadIdx.x];
  if (!waits_first) ptx::wait_for_kernel_before();
  to[threadIdx.x] = x;
}
TEST(Hopper, AKernelThatMayBeginEarlyReadsNoResultBeforeItsWait) {
  int a[32] = {}, b[32] = {}, c[32] = {};
  const auto run = [](const int* from, int* to, bool is_early, bool waits_first) {
    try {
      emulator::begin_grid();
      emulator::run_grid({1, 1, 1}, {32, 1, 1}, 0, [&] {
        if (is_early) emulator::begin_early();
        copy_early(from, to, waits_first);
      });
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  emulator::tracks_writes = true;
  EXPECT_EQ(run(a, b, false, true), "");
  EXPECT_EQ(run(b, c, true, true), "");
  EXPECT_EQ(run(a, c, true, false), "");  // no kernel has written this memory
  EXPECT_FAULT(run(b, c, true, false), "before it waits for the kernel before");
  EXPECT_EQ(run(a, c, false, true), "");  // this kernel starts after the end of previous kernels
  EXPECT_EQ(run(b, c, true, false), "");
  EXPECT_FAULT(run(c, b, true, false), "before it waits for the kernel before");
  emulator::tracks_writes = false;
}

// Blocks add to a sum in order, or in reverse order.
__global__ void in_order(int* ticket, int* sum, bool reverse) {
  const int mine = static_cast<int>(reverse ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
  while (ptx::load_acquire(ticket) != mine) {
  }
  *sum = *sum * 10 + mine;
  ptx::add_release(ticket, 1);
}
TEST(Hopper, ABlockMayWaitOnlyForAnEarlierOne) {
  int ticket = 0, sum = 0;
  emulator::run_grid({3, 1, 1}, {1, 1, 1}, 0, [&] { in_order(&ticket, &sum, false); });
  EXPECT_EQ(sum, 12);
  ticket = 0;
  std::string fault;
  try {
    emulator::run_grid({3, 1, 1}, {1, 1, 1}, 0, [&] { in_order(&ticket, &sum, true); });
  } catch (const std::exception& e) {
    fault = e.what();
  }
  EXPECT_FAULT(fault, "which only a later block could write");
}

}  // namespace
}  // namespace tg::cuda
