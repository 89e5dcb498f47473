// A program on the GPU. Its launches are recorded once as a CUDA graph. Each run replays the graph with one
// call.
#pragma once

#include <vector>

#include "backends/cuda/collectives/ranks.h"
#include "backends/cuda/runtime/host_kernel.h"
#include "backends/cuda/runtime/side_stream.h"
#include "backends/cuda/runtime/staging.h"
#include "backends/cuda/runtime/transfer.h"
#include "backends/cuda/runtime/written_memory.h"

namespace tg::cuda {

class CudaExecutable final : public Executable {
 public:
  // Selects and plans the kernels. Throws DeviceError for a step without a kernel. While this program exists,
  // the backend's list `programs` contains it, so that the next read reports its faults.
  CudaExecutable(std::span<const Step> steps, const PrepareOptions& options, const Gpu& gpu,
                 cudaStream_t stream, Staging& staging, std::vector<CudaExecutable*>& programs);
  ~CudaExecutable() override;

  std::size_t workspace_bytes() const override { return workspace_bytes_ + side_bytes_; }
  void bind(std::span<const Step> steps, const ProgramMemory& memory) override;  // records the graph
  void feed(std::byte* input, const std::byte* host, std::size_t bytes) override;
  // Starts a run and returns. The next transfer or read throws its errors.
  void run() override;
  std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) override;
  std::vector<double> profile() override;
  std::string choice(std::size_t step) const override;

  // Throws the fault of a run, if it has one. Otherwise throws RankLost if a rank is lost. The first report
  // of a fault in the current epoch begins a new epoch. Runs that were started before this report do not
  // change parameters, and they report the same fault. Later runs are not affected.
  void report(const Fault& fault, int epoch);
  // Throws DeviceError for an error that CUDA reports for a run, and names the program. Throws RankLost as
  // above.
  [[noreturn]] void fail_run(cudaError_t status) const;
  Communicator* ranks() const { return ranks_.get(); }  // null if no step waits for ranks
  // Starts to read the faults of runs, if any run's faults are unread. end_read() reports them.
  bool begin_read();
  void end_read();

 private:
  struct Task {
    Call call;
    PlanPtr plan;                  // null if the plan of the previous or next task computes this step too
    const char* computed_by = "";  // if plan is null: the task that computes this step
  };
  // Plans a step that is not fused.
  PlanPtr plan_unfused(const Step& step, const Call& call, const PrepareOptions& options);
  // Appends the task of the next step, and the tasks of other steps that the same kernel computes.
  void add_tasks(const PrepareOptions& options);
  // Determines where deferred sums (KernelPlan::deferred_sums) are computed. Call it after all tasks have
  // been added.
  void plan_deferred_sums();
  void enqueue(std::size_t step, cudaStream_t stream, std::byte* workspace);
  void enqueue(std::size_t step) { enqueue(step, stream_, memory_.workspace); }
  // Records the steps of a group. A step that exchanges data may be recorded on the side stream.
  void enqueue_group(std::size_t first, std::size_t end, SideStream& side);
  cudaGraphExec_t record(std::span<const cudaEvent_t> events);
  void run_stepwise();
  void clear_fault();
  Fault* fault() const { return reinterpret_cast<Fault*>(memory_.results); }

  const Gpu& gpu_;
  cudaStream_t stream_;
  Staging& staging_;
  std::vector<CudaExecutable*>& programs_;
  std::vector<Task> tasks_;
  std::vector<std::size_t> ends_;  // for each group of fused steps: the step after the group
  struct AddUp {
    std::size_t before;  // this step
    std::vector<DeferredSum> sums;
  };
  std::vector<AddUp> deferred_sums_;  // sorted by `before`
  std::size_t workspace_bytes_ = 0,
              side_bytes_ = 0;  // workspace of the side stream, stored after the main stream's workspace
  ProgramMemory memory_{};
  std::span<const Step> steps_;
  const WrittenMemory written_;
  std::shared_ptr<Communicator> ranks_;  // null if no step needs it
  cudaGraphExec_t graph_ = nullptr;
  cudaGraphExec_t timed_ = nullptr;  // the graph with events between steps; recorded by the first profile()
  std::vector<cudaEvent_t> events_;
  std::vector<std::shared_ptr<CudaTransfer>> transfers_;
  std::shared_ptr<Transfer> faults_;  // set while a read waits for the faults
  int epoch_ = 0;
  bool unread_ = false;
  const bool stepwise_;
  Thrown thrown_;
  std::exception_ptr reported_;  // the last exception of a host function
};

}  // namespace tg::cuda
