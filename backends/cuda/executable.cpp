#include "backends/cuda/executable.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <utility>

#include "backends/cuda/check.h"
#include "core/error.h"
#include "core/graph.h"

namespace tg::cuda {

CudaExecutable::CudaExecutable(std::span<const Step> steps, const PrepareOptions& options, const Gpu& gpu,
                               cudaStream_t stream)
    : gpu_(gpu), stream_(stream) {
  tasks_.reserve(steps.size());
  for (const Step& s : steps) {
    Task t{find_kernel(s.op->name), {s.in, s.out, &s.attrs, nullptr, gpu_, options.tf32}, nullptr};
    std::string why = "no CUDA kernel for op '" + s.op->name + "'";
    try {
      if (!t.kernel && s.op->host) {
        t.kernel = &host_kernel;
        t.plan = plan_host(s, thrown_);
      } else if (t.kernel && t.kernel->plan) {
        t.plan = t.kernel->plan(t.call);
      }
    } catch (const DeviceError& e) {
      why = e.what();
      t.kernel = nullptr;
    }
    if (!t.kernel) throw DeviceError("[" + s.name + "] " + why + " " + at_line(s.where));
    t.call.plan = t.plan.get();
    if (t.kernel->workspace) workspace_bytes_ = std::max(workspace_bytes_, t.kernel->workspace(t.call));
    tasks_.push_back(std::move(t));
  }
  check(cudaMalloc(reinterpret_cast<void**>(&fault_), sizeof(Fault)), "memory for a program's faults");
  check(cudaMallocHost(reinterpret_cast<void**>(&seen_), sizeof(Fault)), "memory for a program's faults");
  *seen_ = {Fault::none, 0, 0, 0, 0};
  check(cudaMemcpyAsync(fault_, seen_, sizeof(Fault), cudaMemcpyDefault, stream_), "a program's faults");
}

CudaExecutable::~CudaExecutable() {
  cudaStreamSynchronize(stream_);
  if (graph_) cudaGraphExecDestroy(graph_);
  cudaFree(fault_);
  cudaFreeHost(seen_);
}

void CudaExecutable::enqueue(std::size_t step) {
  const Task& t = tasks_[step];
  t.kernel->launch({stream_, gpu_, workspace_, {fault_, static_cast<int>(step)}}, t.call);
  check(cudaPeekAtLastError(), steps_[step].name + " " + at_line(steps_[step].where));
}

void CudaExecutable::bind(std::span<const Step> steps, std::byte* workspace) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    tasks_[i].call.in = steps[i].in;
    tasks_[i].call.out = steps[i].out;
    tasks_[i].call.attrs = &steps[i].attrs;
  }
  workspace_ = workspace;
  steps_ = steps;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a program");
  cudaGraph_t graph = nullptr;
  try {
    for (std::size_t i = 0; i < tasks_.size(); ++i) enqueue(i);
    check(cudaMemcpyAsync(seen_, fault_, sizeof(Fault), cudaMemcpyDefault, stream_), "a program's faults");
  } catch (...) {
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "recording a program");
  const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "instantiating a program");
  check(cudaGraphUpload(graph_, stream_), "uploading a program");
}

void CudaExecutable::run() {
  throw_fault();
  check(cudaGraphLaunch(graph_, stream_), "running a program");
}

void CudaExecutable::throw_fault() {
  if (thrown_.any.load()) {
    check(cudaStreamSynchronize(stream_), "running a program");
    thrown_.any.store(false);
    std::rethrow_exception(std::exchange(thrown_.what, nullptr));
  }
  const int step = *const_cast<volatile int*>(&seen_->step);
  if (step == Fault::none) return;
  check(cudaStreamSynchronize(stream_), "running a program");
  const Fault f = *seen_;
  *seen_ = {Fault::none, 0, 0, 0, 0};
  check(cudaMemcpyAsync(fault_, seen_, sizeof(Fault), cudaMemcpyDefault, stream_), "a program's faults");
  check(cudaStreamSynchronize(stream_), "a program's faults");
  const Step& s = steps_[static_cast<std::size_t>(f.step)];
  throw Error("[" + s.name + "] index " + std::to_string(f.index) + " at position " +
              std::to_string(f.position) + " is out of range: wanted 0 to " + std::to_string(f.size - 1) +
              " " + at_line(s.where));
}

std::vector<double> CudaExecutable::profile() {
  throw_fault();
  std::vector<cudaEvent_t> events(tasks_.size() + 1);
  for (cudaEvent_t& e : events) check(cudaEventCreate(&e), "an event");
  check(cudaEventRecord(events[0], stream_), "timing");
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    nvtxRangePushA(steps_[i].name.c_str());
    enqueue(i);
    nvtxRangePop();
    check(cudaEventRecord(events[i + 1], stream_), "timing");
  }
  check(cudaMemcpyAsync(seen_, fault_, sizeof(Fault), cudaMemcpyDefault, stream_), "a program's faults");
  check(cudaStreamSynchronize(stream_), "running a program");
  std::vector<double> seconds;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events[i], events[i + 1]), "timing");
    seconds.push_back(ms * 1e-3);
  }
  for (cudaEvent_t e : events) cudaEventDestroy(e);
  throw_fault();
  return seconds;
}

}  // namespace tg::cuda
