#include "backends/cuda/runtime/transfer.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "backends/cuda/kernels/runtime.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/executable.h"
#include "backends/cuda/runtime/memory.h"
#include "core/base/alignment.h"

namespace tg::cuda {

namespace {

// Polls, and lets other threads run in between. If a thread slept until the GPU wakes it, its caches would be
// cold, and the wake-up would take a microsecond. If the wait is longer than inference steps, the thread
// sleeps between polls.
cudaError_t wait_for(cudaEvent_t event) {
  using std::chrono::steady_clock;
  constexpr std::chrono::milliseconds awake{2};
  constexpr std::chrono::microseconds nap{50};
  cudaError_t status = query(event);
  for (const auto start = steady_clock::now(); status == cudaErrorNotReady; status = query(event)) {
    if (steady_clock::now() - start < awake)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(nap);
  }
  return status;
}

}  // namespace

CudaTransfer::~CudaTransfer() {
  if (event_) {
    cudaEventSynchronize(event_);
    cudaEventDestroy(event_);
  }
  cudaFreeHost(memory_);
}

void CudaTransfer::start(CudaExecutable& program, std::span<const Piece> from, const ProgramMemory& memory,
                         cudaStream_t stream, int epoch) {
  program_ = &program, epoch_ = epoch, arrived_ = false;
  pieces.assign(from.begin(), from.end());
  const auto among_results = [&](const Piece& p) {
    return p.from >= memory.results && p.from + p.bytes <= memory.results + memory.results_bytes;
  };
  std::size_t together = status_bytes, bytes = 0;
  for (const Piece& p : pieces) {
    if (among_results(p))
      together = std::max(together, static_cast<std::size_t>(p.from - memory.results) + p.bytes);
    else
      bytes += aligned_bytes(p.bytes);
  }
  bytes += aligned_bytes(together);
  if (bytes > capacity_) {
    cudaFreeHost(memory_);
    memory_ = nullptr, capacity_ = 0;
    memory_ = pinned_memory(bytes, "results");
    capacity_ = bytes;
  }
  if (!event_) check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event");
  check(copy_to_host(memory_, memory.results, together, stream), "a copy from the GPU");
  data.clear();
  std::byte* next = memory_ + aligned_bytes(together);
  for (const Piece& p : pieces) {
    if (among_results(p)) {
      data.push_back(memory_ + (p.from - memory.results));
      continue;
    }
    if (p.bytes > 0) check(copy_to_host(next, p.from, p.bytes, stream), "a copy from the GPU");
    data.push_back(next);
    next += aligned_bytes(p.bytes);
  }
  check(cudaEventRecord(event_, stream), "a copy from the GPU");
}

bool CudaTransfer::done() {
  if (arrived_) return true;
  const cudaError_t status = query(event_);
  if (status == cudaErrorNotReady) return false;
  if (status != cudaSuccess) program_->fail_run(status);
  return arrived_ = true;
}

void CudaTransfer::wait() {
  if (!arrived_) {
    const RankWait waits(program_->ranks());
    if (const cudaError_t status = wait_for(event_); status != cudaSuccess) program_->fail_run(status);
    arrived_ = true;
  }
  program_->report(*reinterpret_cast<const Fault*>(memory_), epoch_);
}

}  // namespace tg::cuda
