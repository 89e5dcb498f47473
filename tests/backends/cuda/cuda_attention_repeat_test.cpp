// Runs attention on a GPU a thousand times while another stream copies memory. Results must be bitwise
// identical. The copies change the start of blocks, the time of their loads, and the contents of caches.
// Skipped if there is no GPU.
#include <cuda_runtime_api.h>

#include "tests/backends/cuda/attention_problem.h"

namespace tg {
namespace {

using namespace testing;

#ifdef TG_RACE_RUNS  // on the emulator: equally many heads, shorter sequences
constexpr int race_runs = TG_RACE_RUNS, shorter = 8;
constexpr std::size_t most_bytes = 1 << 20;
#else
constexpr int race_runs = 1000, shorter = 1;
constexpr std::size_t most_bytes = std::size_t{64} << 30;
#endif

// Allocates half of the free memory in two parts. On a separate stream, copies pieces of one part to the
// other and back.
class BusyMemory {
 public:
  BusyMemory() {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    half_ = std::min(free / 4, most_bytes / 2);
    piece_ = std::min(half_, std::size_t{1} << 30);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    void* memory = nullptr;
    check(cudaMalloc(&memory, 2 * half_));
    check(cudaMemset(memory, 0, 2 * half_));
    memory_ = static_cast<std::byte*>(memory);
  }
  ~BusyMemory() {
    cudaStreamSynchronize(stream_);
    cudaFree(memory_);
    cudaStreamDestroy(stream_);
  }
  BusyMemory(const BusyMemory&) = delete;

  // Starts to copy the next piece from one part to the other.
  void copy() {
    const std::size_t pieces = half_ / piece_, at = copies_ / 2 % pieces * piece_;
    std::byte *const a = memory_ + at, *const b = memory_ + half_ + at;
    const bool back = copies_++ % 2 != 0;
    check(cudaMemcpyAsync(back ? a : b, back ? b : a, piece_, cudaMemcpyDeviceToDevice, stream_));
  }

 private:
  static void check(cudaError_t status) {
    if (status != cudaSuccess) throw DeviceError(cudaGetErrorString(status));
  }
  cudaStream_t stream_ = nullptr;
  std::byte* memory_ = nullptr;
  std::size_t half_ = 0, piece_ = 0, copies_ = 0;
};

class CudaAttentionRepeat : public OnGpu {};

TEST_F(CudaAttentionRepeat, ResultsMatchBitwiseDuringMemoryCopies) {
  BusyMemory memory;
  const std::vector<Problem> problems = {{{2, 8, 2, 700, 900, 64, 64}, {.causal = true}, {.sink = true}},
                                         {{2, 8, 4, 500, 500, 128, 128}, {.causal = true}},
                                         {{1, 16, 16, 300, 2048, 128, 128}},
                                         {{2, 8, 8, 384, 384, 64, 64}, {.window_left = 100}},
                                         {{1, 4, 2, 300, 300, 192, 128}, {.causal = true}}};
  for (const AttentionKernels kernels : {AttentionKernels::best, AttentionKernels::tensor_cores})
    for (Problem p : problems) {
      SCOPED_TRACE(name_of(kernels));
      p.options.kernels = kernels;
      p.n.L /= shorter, p.n.T /= shorter;
      p.before = [&] { memory.copy(); };
      p.run(bf16, bf16, {.device = Device::cuda()}, race_runs);
    }
}

}  // namespace
}  // namespace tg
