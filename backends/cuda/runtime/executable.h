// A program on the GPU: its launches are recorded once as a CUDA graph and replayed with one call per run.
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
  // Finds and plans the kernels. Throws DeviceError for a step without a kernel.
  // `programs`, the backend's, has it while it exists, so that the next read reports its faults.
  CudaExecutable(std::span<const Step> steps, const PrepareOptions& options, const Gpu& gpu,
                 cudaStream_t stream, Staging& staging, std::vector<CudaExecutable*>& programs);
  ~CudaExecutable() override;

  std::size_t workspace_bytes() const override { return workspace_bytes_ + side_bytes_; }
  void bind(std::span<const Step> steps, const ProgramMemory& memory) override;  // records the graph
  void feed(std::byte* input, const std::byte* host, std::size_t bytes) override;
  // Starts a run and returns; the next transfer or read throws its errors.
  void run() override;
  std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) override;
  std::vector<double> profile() override;
  std::string choice(std::size_t step) const override;

  // Throws the fault of a run, if it has one, or else the RankLost if a rank is lost, of which nothing came.
  // The first report of a fault in the current epoch begins a new epoch: runs started before it do not change
  // parameters and report the same fault, runs started after it are normal again.
  void report(const Fault& fault, int epoch);
  // Throws DeviceError for an error that CUDA reports of a run, and names the program; RankLost as above.
  [[noreturn]] void fail_run(cudaError_t status) const;
  Communicator* ranks() const { return ranks_.get(); }  // null where it has no step for which ranks wait
  // Starts to read the faults of runs, if there were any whose faults have not been read; and reports them.
  bool begin_read();
  void end_read();

 private:
  struct Task {
    Call call;
    PlanPtr plan;                  // null if the plan of the task before or after computes this step too
    const char* computed_by = "";  // that task
  };
  // Of a step that no fusion has.
  PlanPtr plan_alone(const Step& step, const Call& call, const PrepareOptions& options);
  // Appends the task of the next step, and those of steps that its kernel computes too.
  void add_tasks(const PrepareOptions& options);
  // Finds where what kernels leave undone has to be done (KernelPlan::deferred_sums), when all tasks are
  // there.
  void plan_deferred_sums();
  void enqueue(std::size_t step, cudaStream_t stream, std::byte* workspace);
  void enqueue(std::size_t step) { enqueue(step, stream_, memory_.workspace); }
  // Records the steps of a group, or on the side stream one that exchanges data.
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
  std::vector<std::size_t> ends_;  // of each group of steps that one kernel computes: the step after it
  struct AddUp {
    std::size_t before;  // this step
    std::vector<SumLeft> sums;
  };
  std::vector<AddUp> deferred_sums_;  // in the order of steps
  std::size_t workspace_bytes_ = 0,
              side_bytes_ = 0;  // of kernels on the stream, and behind it on the side stream
  ProgramMemory memory_{};
  std::span<const Step> steps_;
  const WrittenMemory written_;
  std::shared_ptr<Communicator> ranks_;  // null where no step needs it
  cudaGraphExec_t graph_ = nullptr;
  cudaGraphExec_t timed_ =
      nullptr;  // the same with events between the steps, recorded by the first profile()
  std::vector<cudaEvent_t> events_;
  std::vector<std::shared_ptr<CudaTransfer>> transfers_;
  std::shared_ptr<Transfer> faults_;  // while a read waits for them
  int epoch_ = 0;
  bool unread_ = false;
  const bool stepwise_;
  Thrown thrown_;
  std::exception_ptr reported_;  // the last exception of a host function
};

}  // namespace tg::cuda
