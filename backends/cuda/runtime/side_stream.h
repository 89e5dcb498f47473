// A second stream, used while a program is recorded. Its steps run concurrently with later steps. For
// example, exchanges between ranks overlap the backward pass.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <span>
#include <vector>

#include <tilegrad/core/run/step.h>

namespace tg::cuda {

class SideStream {
 public:
  explicit SideStream(cudaStream_t main) : main_(main) {}
  ~SideStream();
  SideStream(const SideStream&) = delete;

  // Records f on the side stream, after everything recorded so far on the main stream. The step's operands
  // are in use until the main stream has waited for the step.
  void run(const Step& step, const std::function<void(cudaStream_t)>& f);
  // If `steps` conflict with a step on the side stream, makes the main stream wait for it. They conflict if
  // they write that step's operands or results, or if they read its results.
  void wait_before(std::span<const Step> steps);
  void wait();

 private:
  struct Used {
    std::vector<Arg> in, out;
  };
  cudaEvent_t mark(cudaStream_t stream);  // an event after everything recorded so far

  cudaStream_t main_, own_ = nullptr;  // created by the first run()
  std::vector<cudaEvent_t> events_;
  std::vector<Used> used_;  // memory used by steps that the main stream has not waited for
};

}  // namespace tg::cuda
