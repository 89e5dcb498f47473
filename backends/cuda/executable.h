// A program on the GPU: its launches recorded once as a CUDA graph and replayed with one call per run.
#pragma once

#include <vector>

#include "backends/cuda/host_kernel.h"

namespace tg::cuda {

class CudaExecutable final : public Executable {
 public:
  // Finds and plans the kernels. Throws DeviceError for a step that has none.
  CudaExecutable(std::span<const Step> steps, const PrepareOptions& options, const Gpu& gpu,
                 cudaStream_t stream);
  ~CudaExecutable() override;

  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  void bind(std::span<const Step> steps, std::byte* workspace) override;  // records the graph
  // Starts a run and returns; its faults are thrown by the next run, or by the next read of device memory.
  void run() override;
  std::vector<double> profile() override;

  // After the stream is done: throws Error if a kernel met an index out of range, and what a host function
  // threw.
  void throw_fault();

 private:
  struct Task {
    const Kernel* kernel;
    Call call;
    std::shared_ptr<const void> plan;
  };
  void enqueue(std::size_t step);

  const Gpu& gpu_;
  cudaStream_t stream_;
  std::vector<Task> tasks_;
  std::size_t workspace_bytes_ = 0;
  std::byte* workspace_ = nullptr;
  std::span<const Step> steps_;
  Fault* fault_ = nullptr;  // in device memory
  Fault* seen_ = nullptr;   // its copy on the host after each run, pinned
  cudaGraphExec_t graph_ = nullptr;
  Thrown thrown_;
};

}  // namespace tg::cuda
