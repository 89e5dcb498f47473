// A second stream for steps that run beside those behind them, while a program is recorded: exchanges between
// ranks beside the backward pass.
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

  // Records f on the side stream, behind what is on the main stream so far. The step's operands are in use
  // until the main stream has waited for it.
  void run(const Step& step, const std::function<void(cudaStream_t)>& f);
  // Lets the main stream wait for what is on the side stream, if one of the steps writes what is read or
  // written there, or reads what is written.
  void wait_before(std::span<const Step> steps);
  void wait();

 private:
  struct Used {
    std::vector<Arg> in, out;
  };
  cudaEvent_t mark(cudaStream_t stream);  // an event behind what is on it

  cudaStream_t main_, own_ = nullptr;  // made by the first run()
  std::vector<cudaEvent_t> events_;
  std::vector<Used> used_;  // by what the main stream has not waited for
};

}  // namespace tg::cuda
