// Tests clusters on the emulated GPU. Blocks that exchange tiles must give correct results. If one of these
// kernels lacks a fence, wait, arrival or barrier, the emulator must detect the mistake.
#include <vector>

#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"
#include "tests/gpu_emulator/hopper_kernels.h"

namespace tg::cuda {
namespace {

using ptx::u32;
using tile::Accumulator, tile::Ring, tile::SwizzledTile;
using Tile = SwizzledTile<64, 64>;

constexpr int rings = 64 << 10;  // offset of the barriers in shared memory
constexpr int rounds = 3;

__device__ void meet_cluster() {
  ptx::cluster_arrive();
  ptx::cluster_wait();
}
// Reports that the warp no longer uses a tile. The other block may now fill it.
__device__ void release_to_other(Ring<1> ring, u32 use) {
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    ptx::mbarrier_arrive_at(ptx::shared_of(ring.empty(use), ptx::cluster_rank() ^ 1));
}
// Returns the first element of t·tᵀ.
__device__ float multiply(Tile t) {
  Accumulator<16, 64> d;
  ptx::wgmma_fence();
  ptx::Wgmma<Half, 64>::begin<false, false>(d.x[0], t.along_columns(0, 0), t.along_columns(0, 0));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  tile::keep(d);
  return d.x[0][0][0];
}

// ---- launches ----

__global__ void number_blocks(int* out) {
  if (threadIdx.x == 0) out[blockIdx.x] = static_cast<int>(ptx::cluster_rank());
}
TEST(Clusters, ALaunchGroupsNeighboringBlocks) {
  int out[4] = {-1, -1, -1, -1};
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config{dim3(4), dim3(128), 0, nullptr, &attribute, 1};
  EXPECT_EQ(cudaLaunchKernelEx(&config, number_blocks, out), cudaSuccess);
  EXPECT_EQ(std::vector<int>(out, out + 4), (std::vector<int>{0, 1, 0, 1}));
  config.grid = dim3(3);
  EXPECT_EQ(cudaLaunchKernelEx(&config, number_blocks, out), cudaErrorInvalidValue);
  cudaGetLastError();
  EXPECT_FAULT(run_cluster(5, number_blocks, 128, out), "no more than 4");
  EXPECT_FAULT(run_cluster(2, number_blocks, 64, out), "whole warpgroups");
}

__global__ void write_static(int* out) {
  __shared__ int x[128];
  x[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = x[threadIdx.x ^ 1];
}
__global__ void write_by_pointer(u32 rank) {
  if (threadIdx.x == 0) *emulator::dynamic_shared(rank) = 1;
}
TEST(Clusters, ABlockHasOrdinaryAccessToItsOwnMemoryOnly) {
  int out[128];
  EXPECT_EQ(run(write_static, 128, out), "");
  EXPECT_FAULT(run_cluster(2, write_static, 128, out), "static shared memory");
  EXPECT_FAULT(run_cluster(2, write_by_pointer, 128, 1),
               "byte 0 of dynamic shared memory of block 1 of the cluster");
}

// ---- addresses ----

__global__ void give_addresses(u32* out) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 own = ptx::shared_address(memory), rank = ptx::cluster_rank();
  if (threadIdx.x == 0) out[rank * 2] = own, out[rank * 2 + 1] = ptx::shared_of(own, rank ^ 1);
}
__global__ void ask_for_a_third_block() {
  ptx::shared_of(1024, 2);
}
TEST(Clusters, AnAddressContainsTheBlock) {
  u32 out[4];
  EXPECT_EQ(run_cluster(2, give_addresses, 128, out), "");
  EXPECT_NE(out[0], out[2]);
  EXPECT_EQ(out[1], out[2]);
  EXPECT_EQ(out[3], out[0]);
  EXPECT_FAULT(run_cluster(2, ask_for_a_third_block, 128), "the cluster has no block 2");
}

// A descriptor has no bits for the block's rank. If it contained the complete address, the rank's bits would
// change the distance between the operand's column blocks.
__global__ void multiply_wide(float* out) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory);
  const Tile ones{base};
  const SwizzledTile<64, 128> wide{base + Tile::bytes};  // ones in the 16 rows that wgmma reads, and zeros
  for (u32 at = threadIdx.x * 16; at < 3 * Tile::bytes; at += 128 * 16) {
    const float e = at < Tile::bytes || at % Tile::bytes < 16 * 128 ? 1 : 0;
    const u32 x = ptx::two<Half>(e, e);
    ptx::st_shared_v4(base + at, make_uint4(x, x, x, x));
  }
  ptx::fence_async();
  __syncthreads();
  Accumulator<16, 128> d;
  ptx::wgmma_fence();
  ptx::Wgmma<Half, 128>::begin<false, true>(d.x[0], ones.along_columns(0, 0), wide.along_rows(0, 0));
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  tile::keep(d);
  if (threadIdx.x == 0) out[ptx::cluster_rank()] = d.x[0][15][0];
}
TEST(Clusters, WgmmaOfEachBlockReadsItsOwnOperands) {
  float out[2];
  EXPECT_EQ(run_cluster(2, multiply_wide, 128, out), "");
  EXPECT_EQ(out[0], 16);
  EXPECT_EQ(out[1], 16);
}

// ---- the barrier of all threads ----

enum class Meet { right, early_end, only_one_block, half_a_warp, twice, no_arrival };
__global__ void meet(Meet how) {
  const u32 rank = ptx::cluster_rank(), thread = threadIdx.x;
  if (how == Meet::early_end && rank == 1) return;
  if (how == Meet::half_a_warp && thread % 32 >= 16) return __syncthreads();
  if (how != Meet::no_arrival && (how != Meet::only_one_block || rank == 0)) ptx::cluster_arrive();
  if (how == Meet::twice) ptx::cluster_arrive();
  ptx::cluster_wait();
  meet_cluster();
}
TEST(Clusters, MistakesWithTheBarrierAreFound) {
  EXPECT_EQ(run_cluster(2, meet, 128, Meet::right), "");
  EXPECT_EQ(run_cluster(4, meet, 128, Meet::right), "");
  EXPECT_EQ(run_cluster(2, meet, 128, Meet::early_end), "");
  EXPECT_FAULT(run_cluster(2, meet, 128, Meet::only_one_block), "no cluster_arrive before it");
  EXPECT_FAULT(run_cluster(2, meet, 128, Meet::half_a_warp), "wait for others that never arrive");
  EXPECT_FAULT(run_cluster(2, meet, 128, Meet::twice), "a second cluster_arrive");
  EXPECT_FAULT(run_cluster(2, meet, 128, Meet::no_arrival), "no cluster_arrive before it");
}

// A block waits for another that never arrives.
__global__ void meet_or_wait(bool waits) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 barrier = ptx::shared_address(memory);
  if (threadIdx.x == 0) ptx::mbarrier_init(barrier, 1);
  __syncthreads();
  if (waits && ptx::cluster_rank() == 1) ptx::mbarrier_wait(barrier, 0);
  meet_cluster();
}
TEST(Clusters, AMissingBlockIsReported) {
  EXPECT_EQ(run_cluster(2, meet_or_wait, 128, false), "");
  EXPECT_FAULT(run_cluster(2, meet_or_wait, 128, true),
               "the cluster's barrier, which has 128 of 256 threads");
}

// __syncthreads orders only the threads of one block. So block 1's copy may overwrite data while block 0
// reads it.
__global__ void overwrite_after_read(float* out, bool of_cluster) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory), barrier = base + rings;
  float* const line = reinterpret_cast<float*>(memory);
  line[threadIdx.x] = 1;
  ptx::fence_async();
  if (threadIdx.x == 0) ptx::mbarrier_init(barrier, 1), ptx::fence_mbarrier_init();
  meet_cluster();
  const u32 rank = ptx::cluster_rank();
  if (rank == 0) out[threadIdx.x] = line[threadIdx.x];
  if (of_cluster)
    meet_cluster();
  else
    __syncthreads();
  if (rank == 0 && threadIdx.x == 0) ptx::mbarrier_arrive_expect(barrier, 512);
  if (rank == 1 && threadIdx.x == 0)
    ptx::bulk_copy_to(ptx::shared_of(base, 0), base, 512, ptx::shared_of(barrier, 0));
  if (rank == 0) ptx::mbarrier_wait(barrier, 0);
  meet_cluster();
}
TEST(Clusters, SyncthreadsOrdersOneBlockOnly) {
  std::vector<float> out(128);
  EXPECT_EQ(run_cluster(2, overwrite_after_read, 128, out.data(), true), "");
  EXPECT_FAULT(run_cluster(2, overwrite_after_read, 128, out.data(), false), "a bulk copy");
}

// ---- tiles sent between blocks ----

enum class Pass {
  right,
  no_first_barrier,
  no_async_fence,
  no_barrier,
  no_acquire,
  acquire_of_block,
  early_overwrite,
  no_wait,
  early_release,
  ordinary_read,
  ordinary_arrival,
  no_release,
  no_expect,
  own_barrier,
  no_last_barrier,
};
// Each block fills a tile and copies it to the other block. Then it multiplies the tile that it receives. The
// ring describes the buffer of the received tile. If the ring is empty, this block's tile may be copied to
// the other block.
__global__ void pass_tiles(float* out, Pass how) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory), rank = ptx::cluster_rank(), other = rank ^ 1;
  const Ring<1> ring{base + rings};
  const Tile own{base}, received{base + Tile::bytes};
  if (threadIdx.x == 0) ring.init(4), ptx::fence_mbarrier_init();
  if (how == Pass::no_first_barrier)
    __syncthreads();
  else
    meet_cluster();
  float sum = 0;
  for (u32 n = 0; n < rounds; ++n) {
    const bool all_wait = how != Pass::early_overwrite && how != Pass::no_acquire;
    if (how == Pass::acquire_of_block)
      ring.acquire(n);
    else if (all_wait)
      ring.acquire_of_cluster(n);
    const u32 x = ptx::two<Half>(static_cast<float>(n + rank + 1), static_cast<float>(n + rank + 1));
    for (u32 at = threadIdx.x * 16; at < Tile::bytes; at += 128 * 16)
      ptx::st_shared_v4(own.base + at, make_uint4(x, x, x, x));
    if (how != Pass::no_async_fence) ptx::fence_async();
    if (how != Pass::no_barrier) __syncthreads();
    if (threadIdx.x == 0) {
      if (how == Pass::early_overwrite) ring.acquire_of_cluster(n);
      if (how != Pass::no_expect) ring.expect(n, Tile::bytes);
      ptx::bulk_copy_to(ptx::shared_of(received.base, other), own.base, Tile::bytes,
                        ptx::shared_of(ring.full(n), how == Pass::own_barrier ? rank : other));
    }
    if (how == Pass::no_wait)
      meet_cluster();  // the copy has been issued
    else
      ring.wait(n);
    if (how == Pass::early_release) release_to_other(ring, n);
    sum += multiply(received);
    if (how == Pass::ordinary_read) sum += reinterpret_cast<const Half*>(memory + Tile::bytes)[threadIdx.x];
    if (how == Pass::ordinary_arrival && threadIdx.x % 32 == 0)
      ptx::mbarrier_arrive(ptx::shared_of(ring.empty(n), other));
    if (how != Pass::early_release && how != Pass::no_release) release_to_other(ring, n);
  }
  out[rank * 128 + threadIdx.x] = sum;
  if (how != Pass::no_last_barrier) meet_cluster();
}
TEST(Clusters, MistakesWithTilesSentBetweenBlocksAreFound) {
  std::vector<float> out(256);
  const auto fault = [&](Pass how) { return run_cluster(2, pass_tiles, 128, out.data(), how); };
  EXPECT_EQ(fault(Pass::right), "");
  EXPECT_EQ(out[0], 16 * (4 + 9 + 16));  // sums of block 1's tiles; the GEMM has 16 columns
  EXPECT_EQ(out[128], 16 * (1 + 4 + 9));
  EXPECT_FAULT(fault(Pass::no_first_barrier), "initialis");
  EXPECT_FAULT(fault(Pass::no_async_fence), "wrote it with no fence_async");
  EXPECT_FAULT(fault(Pass::no_barrier), "a bulk copy");
  EXPECT_FAULT(fault(Pass::no_acquire), "over what");
  EXPECT_FAULT(fault(Pass::acquire_of_block), "in the scope of its block");
  EXPECT_FAULT(fault(Pass::early_overwrite), "a write over what a bulk copy may still read");
  EXPECT_FAULT(fault(Pass::no_wait), "wgmma reads before a bulk copy has arrived");
  EXPECT_FAULT(fault(Pass::early_release), "wgmma");
  EXPECT_FAULT(fault(Pass::ordinary_read), "a bulk copy after a read");
  EXPECT_FAULT(fault(Pass::ordinary_arrival), "is not of this block");
  EXPECT_FAULT(fault(Pass::no_release), "which lacks 4 of 4 arrivals");
  EXPECT_FAULT(fault(Pass::no_expect), "wait for others that never arrive");
  EXPECT_FAULT(fault(Pass::own_barrier), "a bulk copy to another block than that of the mbarrier");
  EXPECT_FAULT(fault(Pass::no_last_barrier), "has ended");
}

// Block 0 uses the memory of block 1. Block 1 may have ended.
__global__ void use_after_end(bool arrives, bool of_cluster) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory), barrier = base + rings;
  if (threadIdx.x == 0) ptx::mbarrier_init(barrier, 1), ptx::fence_mbarrier_init();
  meet_cluster();
  if (of_cluster) ptx::cluster_arrive();
  if (ptx::cluster_rank() == 1) {
    if (arrives && threadIdx.x < 32) ptx::mbarrier_wait_cluster(barrier, 0);
    if (of_cluster) ptx::cluster_wait();
    return;
  }
  if (threadIdx.x == 0) ptx::mbarrier_arrive_at(ptx::shared_of(barrier, 1));
  if (of_cluster) ptx::cluster_wait();
}
TEST(Clusters, ABlockStaysUntilOthersNoLongerUseIt) {
  EXPECT_EQ(run_cluster(2, use_after_end, 128, true, false), "");  // waits for the end of the use
  EXPECT_FAULT(run_cluster(2, use_after_end, 128, false, false), "has ended");
}

// ---- tiles that are fetched once for both blocks ----

enum class Fetch { right, acquire_own_only, no_expect, no_last_barrier };
// Each block fetches half of the rows for both blocks.
__global__ void fetch_for_both(const CUtensorMap* map, float* out, Fetch how) {
  TG_DYNAMIC_SHARED(memory, 1024);
  const u32 base = ptx::shared_address(memory), rank = ptx::cluster_rank();
  const Ring<1> ring{base + rings};
  const Tile tile{base};
  if (threadIdx.x == 0) ring.init(how == Fetch::acquire_own_only ? 4 : 8), ptx::fence_mbarrier_init();
  meet_cluster();
  float sum = 0;
  for (u32 n = 0; n < rounds; ++n) {
    if (threadIdx.x == 0) {
      ring.acquire_of_cluster(n);
      if (how != Fetch::no_expect || rank == 0) ring.expect(n, Tile::bytes);
      ptx::tma_load_for_both(base + rank * (Tile::bytes / 2), map, ring.full(n), 0,
                             static_cast<int>(n * 64 + rank * 32), 0, 0);
    }
    ring.wait(n);
    sum += multiply(tile);
    if (how == Fetch::acquire_own_only)
      ring.release(n);
    else
      ring.release(n), release_to_other(ring, n);
  }
  out[rank * 128 + threadIdx.x] = sum;
  if (how != Fetch::no_last_barrier) meet_cluster();
}
TEST(Clusters, MistakesWithTilesForBothBlocksAreFound) {
  Matrix m(rounds * 64, 64, 5);
  const CUtensorMap map = Map(m, 32).encoded();
  std::vector<float> out(256);
  const auto fault = [&](Fetch how) { return run_cluster(2, fetch_for_both, 128, &map, out.data(), how); };
  EXPECT_EQ(fault(Fetch::right), "");
  for (const int warp : {0, 2}) {  // warp 2 checks the rows that the second block fetched
    float sum = 0;
    for (int n = 0; n < rounds; ++n)
      for (int k = 0; k < 16; ++k) sum += m(n * 64 + warp * 16, k) * m(n * 64, k);
    for (const int rank : {0, 1}) EXPECT_EQ(out[static_cast<std::size_t>(rank * 128 + warp * 32)], sum);
  }
  EXPECT_FAULT(fault(Fetch::acquire_own_only), "a bulk copy");
  EXPECT_FAULT(fault(Fetch::no_expect), "wait for others that never arrive");
  EXPECT_FAULT(fault(Fetch::no_last_barrier), "has ended");
}

}  // namespace
}  // namespace tg::cuda
