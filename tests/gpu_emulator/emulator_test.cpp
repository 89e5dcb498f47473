// Tests the emulator itself. Common operations of threads must give the same results as in CUDA. The emulator
// must detect the mistakes in faulty kernels.
#include <gtest/gtest.h>

#include <numeric>

#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda {
namespace {

// Runs a kernel in a block of `threads` threads. Returns its error, or "".
template <class... P>
std::string run(void (*kernel)(P...), unsigned threads, std::type_identity_t<P>... args) {
  try {
    emulator::run_grid({1, 1, 1}, {threads, 1, 1}, 4096, [&] { kernel(args...); });
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

__global__ void sum_of_block(int* out) {
  __shared__ int part[4];
  int v = static_cast<int>(threadIdx.x);
  for (int by = 16; by > 0; by /= 2) v += __shfl_down_sync(~0u, v, by);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  *out = part[0] + part[1] + part[2] + part[3];
}

TEST(Emulator, ThreadsMeetInWarpsAndBlocks) {
  int sum = 0;
  EXPECT_EQ(run(sum_of_block, 128, &sum), "");
  EXPECT_EQ(sum, 127 * 128 / 2);
}

__global__ void ask_each_other(unsigned* ballot, int* least, int* pushed) {
  const int i = static_cast<int>(threadIdx.x);
  ballot[i] = __ballot_sync(~0u, i % 3 == 0);
  least[i] = __reduce_min_sync(~0u, 100 - i);
  pushed[i] = __shfl_up_sync(~0u, i, 1, 8);
}

TEST(Emulator, LanesOfAWarpGetOneAnothersValues) {
  unsigned ballot[32];
  int least[32], pushed[32];
  EXPECT_EQ(run(ask_each_other, 32, ballot, least, pushed), "");
  EXPECT_EQ(ballot[7], 0b01001001001001001001001001001001u);
  EXPECT_EQ(least[31], 69);
  EXPECT_EQ(pushed[8], 8);  // the first of a group of 8 keeps its own value
  EXPECT_EQ(pushed[15], 14);
}

// Computes c = a·bᵀ for a [16, 16] and b [8, 16] of bf16 in row-major shared memory.
__global__ void multiply(const float* a, const float* b, float* c) {
  TG_DYNAMIC_SHARED(memory, 256);
  auto* x = reinterpret_cast<__nv_bfloat16*>(memory);  // [32, 16]: a, and b twice
  for (int n = static_cast<int>(threadIdx.x); n < 512; n += 32)
    x[n] = __float2bfloat16_rn(n < 256 ? a[n] : b[(n - 256) % 128]);
  __syncwarp();
  const int l = static_cast<int>(threadIdx.x);
  std::uint32_t left[4], right[4];
  ptx::ldmatrix(left, ptx::shared_address(x + l % 16 * 16 + l / 16 * 8));
  ptx::ldmatrix(right, ptx::shared_address(x + 256 + (l % 8 + l / 16 * 8) * 16 + l / 8 % 2 * 8));
  float sum[4] = {};
  ptx::mma_m16n8k16_bf16(sum, left, right[0], right[1]);
  for (int e = 0; e < 4; ++e) c[(l / 4 + e / 2 * 8) * 8 + l % 4 * 2 + e % 2] = sum[e];
}

TEST(Emulator, TensorCoresMultiply) {
  float a[256], b[128], c[128];
  for (int n = 0; n < 256; ++n) a[n] = static_cast<float>(n % 13 - 6);
  for (int n = 0; n < 128; ++n) b[n] = static_cast<float>(n % 7 - 3);
  EXPECT_EQ(run(multiply, 32, a, b, c), "");
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[i * 16 + k] * b[j * 16 + k];
      EXPECT_EQ(c[i * 8 + j], sum) << i << ", " << j;
    }
}

__global__ void copy_in_groups(const float4* from, float4* to, bool waits) {
  TG_DYNAMIC_SHARED(memory, 256);
  auto* x = reinterpret_cast<float4*>(memory);
  for (int n = 0; n < 2; ++n) {
    ptx::cp_async_16(ptx::shared_address(x + n), from + n, n == 1 ? 0 : 16);
    ptx::cp_async_commit();
  }
  if (waits) ptx::cp_async_wait<0>();
  to[0] = x[0], to[1] = x[1];
}

TEST(Emulator, CopiesArriveWithTheWaitAndNotBefore) {
  const float4 from[2] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  float4 to[2];
  EXPECT_EQ(run(copy_in_groups, 1, from, to, true), "");
  EXPECT_EQ(to[0].y, 2);
  EXPECT_EQ(to[1].y, 0);  // no bytes of this copy have arrived
  EXPECT_EQ(run(copy_in_groups, 1, from, to, false), "");
  EXPECT_TRUE(std::isnan(to[0].y));
}

__global__ void copy_without_commit(const float4* from) {
  TG_DYNAMIC_SHARED(memory, 16);
  ptx::cp_async_16(ptx::shared_address(memory), from, 16);
}
TEST(Emulator, UncommittedCopiesAreReported) {
  const float4 from{};
  EXPECT_NE(run(copy_without_commit, 1, &from).find("did not commit"), std::string::npos);
}

__global__ void write_at(int n) {
  TG_DYNAMIC_SHARED(memory, 16);
  reinterpret_cast<float*>(memory)[n] = 1;
}

TEST(Emulator, AccessesBeyondALaunchsSharedMemoryAreReported) {
  EXPECT_EQ(run(write_at, 1, 1023), "");
  EXPECT_NE(run(write_at, 1, 1024).find("beyond the 4096 bytes of the launch"), std::string::npos);
}

TEST(Emulator, AnUnrecordedEventHasNoTimeAndIsNotWaitedFor) {
  cudaEvent_t from, to;
  cudaEventCreate(&from), cudaEventCreate(&to);
  float ms = 0;
  cudaEventRecord(from);
  EXPECT_NE(cudaEventElapsedTime(&ms, from, to), cudaSuccess);
  EXPECT_NE(cudaEventQuery(to), cudaSuccess);
  EXPECT_NE(cudaEventSynchronize(to), cudaSuccess);
  cudaEventRecord(to);
  EXPECT_EQ(cudaEventSynchronize(to), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, from, to), cudaSuccess);
  cudaEventDestroy(from), cudaEventDestroy(to);
  cudaGetLastError();
}

__global__ void read_shared(float* out) {
  TG_DYNAMIC_SHARED(memory, 16);
  *out = reinterpret_cast<const float*>(memory)[5];
}

TEST(Emulator, SharedMemoryBeginsAsNaN) {
  float x = 0;
  EXPECT_EQ(run(read_shared, 1, &x), "");
  EXPECT_TRUE(std::isnan(x));
}

__global__ void mask_without_me() {
  __syncwarp(0xffffu);
}
__global__ void half_a_warp_shuffles() {
  if (threadIdx.x < 16) __shfl_xor_sync(~0u, 1, 1);
  __syncthreads();
}
__global__ void lanes_disagree() {
  if (threadIdx.x % 2)
    __syncwarp();
  else
    __shfl_xor_sync(~0u, 1, 1);
}

TEST(Emulator, ThreadsThatNeverMeetAreReported) {
  EXPECT_NE(run(half_a_warp_shuffles, 32).find("wait for others that never arrive"), std::string::npos);
  EXPECT_NE(run(lanes_disagree, 32).find("disagrees"), std::string::npos);
  EXPECT_NE(run(mask_without_me, 32).find("not in the mask"), std::string::npos);
}

TEST(Emulator, AThreadMayEndBeforeABarrierOfTheOthers) {
  EXPECT_EQ(run(
                +[] {
                  if (threadIdx.x >= 40) return;
                  __syncthreads();
                },
                64),
            "");
}

// Each thread writes a number and reads the number of its neighbor. Then the memory is used again.
enum Barrier { none, of_warp, of_block };
__global__ void pass_on(int* out, Barrier before_read, Barrier before_write) {
  __shared__ int x[64];
  const auto wait = [](Barrier b) {
    if (b == of_warp) __syncwarp();
    if (b == of_block) __syncthreads();
  };
  const unsigned i = threadIdx.x;
  x[i] = static_cast<int>(i);
  wait(before_read);
  out[i] = x[(i + 1) % blockDim.x];
  wait(before_write);
  x[i] = 0;
}

TEST(Emulator, RacesInSharedMemoryAreReported) {
  int out[64];
  EXPECT_EQ(run(pass_on, 64, out, of_block, of_block), "");
  EXPECT_EQ(run(pass_on, 32, out, of_warp, of_warp), "");
  EXPECT_NE(run(pass_on, 64, out, of_warp, of_block).find("before a read in static"), std::string::npos);
  EXPECT_NE(run(pass_on, 64, out, of_block, of_warp).find("a read after a write"), std::string::npos);
  EXPECT_NE(run(pass_on, 64, out, none, of_block).find("before a read in static"), std::string::npos);
  EXPECT_NE(run(pass_on, 32, out, of_block, none).find("a write after a read"), std::string::npos);
}

__global__ void copy_without_barrier(const float4* from, float4* to) {
  TG_DYNAMIC_SHARED(memory, 256);
  auto* x = reinterpret_cast<float4*>(memory);
  ptx::cp_async_16(ptx::shared_address(x + threadIdx.x), from + threadIdx.x, 16);
  ptx::cp_async_commit();
  __syncthreads();
  ptx::cp_async_wait<0>();
  to[threadIdx.x] = x[(threadIdx.x + 1) % blockDim.x];
}
TEST(Emulator, OtherThreadsSeeCopiesOnlyAfterTheWaitAndABarrier) {
  const float4 from[64] = {};
  float4 to[64];
  EXPECT_NE(run(copy_without_barrier, 64, from, to).find("with no barrier"), std::string::npos);
}

__global__ void read_unwritten(int* out) {
  __shared__ int x[2];
  x[0] = 1;
  *out = x[1];
}
TEST(Emulator, StaticSharedMemoryMustBeWrittenFirst) {
  int out;
  EXPECT_NE(run(read_unwritten, 1, &out).find("nothing was written"), std::string::npos);
}

template <class T>
__global__ void copy_first(const float* from, float* to) {
  *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
}
TEST(Emulator, MisalignedAccessesAreReported) {
  alignas(16) float from[8] = {}, to[8];
  EXPECT_EQ(run(copy_first<float4>, 1, from, to), "");
  EXPECT_NE(run(copy_first<float2>, 1, from, to + 1).find("not a multiple"), std::string::npos);
  cudaSetDevice(0);
  EXPECT_DEATH(run(copy_first<float4>, 1, from, to + 2), "misaligned");
}

TEST(Emulator, MemoryBeginsAsNaNAndEndsAtAPageThatFaults) {
  void* p = nullptr;
  ASSERT_EQ(cudaMalloc(&p, 1000), cudaSuccess);
  auto* x = static_cast<float*>(p);
  EXPECT_TRUE(std::isnan(x[249]));
  cudaSetDevice(0);
  EXPECT_DEATH(static_cast<volatile float*>(x)[256] = 1, "byte 1024 of 1000 bytes of device memory");
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

TEST(Emulator, ACapturedStreamRunsWithItsGraph) {
  cudaStream_t s;
  cudaStreamCreate(&s);
  int from = 1, to = 0;
  cudaGraph_t graph;
  cudaGraphExec_t made;
  cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
  cudaMemcpyAsync(&to, &from, sizeof to, cudaMemcpyDefault, s);
  cudaStreamEndCapture(s, &graph);
  EXPECT_EQ(to, 0);
  cudaGraphInstantiate(&made, graph);
  cudaGraphDestroy(graph);
  from = 2;
  cudaGraphLaunch(made, s);
  EXPECT_EQ(to, 2);
  cudaGraphExecDestroy(made);
  cudaStreamDestroy(s);
}

}  // namespace
}  // namespace tg::cuda
