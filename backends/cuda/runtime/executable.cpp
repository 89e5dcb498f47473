#include "backends/cuda/runtime/executable.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/graph/graph.h>
#include "backends/cuda/collectives/ranks.h"
#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/gemm/algorithms.h"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/graph.h"
#include "core/compile/fused_reductions.h"
#include "core/graph/op_attrs.h"
#include "core/run/backend_steps.h"

namespace tg::cuda {

namespace {

// The alignment that kernels expect for their workspace.
std::size_t aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Whether the step sums gradients and gives each rank its shard. Such sums are not read before the update, so
// they run on the side stream.
bool is_on_side_stream(const Step& step) {
  return step.op->collective == Collective::reduce_scatter;
}

// Whether the op has a function on host memory and no CUDA kernel.
bool runs_on_host(const Step& step) {
  return step.op->host && !find_kernel(step.op->name);
}

}  // namespace

CudaExecutable::CudaExecutable(std::span<const Step> steps, const PrepareOptions& options, const Gpu& gpu,
                               cudaStream_t stream, Staging& staging, std::vector<CudaExecutable*>& programs)
    : gpu_(gpu),
      stream_(stream),
      staging_(staging),
      programs_(programs),
      written_(steps),
      stepwise_(stepwise()) {
  tasks_.reserve(steps.size());
  steps_ = steps;
  const SharedChoices choices(options.ranks.get());
  while (tasks_.size() < steps.size()) add_tasks(options), ends_.push_back(tasks_.size());
  plan_deferred_sums();
  programs_.push_back(this);
}

// Deferred sums are computed as late as possible, before the first step that reads one of them. Most deferred
// sums can then share one launch.
void CudaExecutable::plan_deferred_sums() {
  std::vector<DeferredSum> left;
  std::vector<const Arg*> outputs;  // outputs of the deferred sums
  const auto add_up_before = [&](std::size_t step) {
    if (!left.empty()) deferred_sums_.push_back({step, std::exchange(left, {})});
    outputs.clear();
  };
  std::size_t first = 0;
  for (const std::size_t end : ends_) {
    const auto reads = [&](const Step& s) {
      return std::ranges::any_of(outputs, [&](const Arg* out) { return meets(*out, s.in); });
    };
    if (std::any_of(steps_.begin() + static_cast<std::ptrdiff_t>(first),
                    steps_.begin() + static_cast<std::ptrdiff_t>(end), reads))
      add_up_before(first);
    for (; first < end; ++first) {
      if (!tasks_[first].plan) continue;
      const std::vector<DeferredSum> more = tasks_[first].plan->deferred_sums(tasks_[first].call);
      for (std::size_t i = 0; i < more.size(); ++i) {
        if (steps_[first].reads[1 + i] == 0) continue;  // unread, so its memory is soon reused
        outputs.push_back(&steps_[first].out[1 + i]);
        left.push_back(more[i]);
      }
    }
  }
  add_up_before(steps_.size());
}

PlanPtr CudaExecutable::plan_unfused(const Step& s, const Call& call, const PrepareOptions& options) {
  if (rank_attrs_of(*s.op, s.attrs)) {
    ranks_ = options.ranks;
    return plan_ranks(s, options.ranks ? NcclGroup::of(options.ranks, gpu_.ordinal) : nullptr);
  }
  if (runs_on_host(s)) return plan_host(s, thrown_);
  if (const Kernel* kernel = find_kernel(s.op->name)) return kernel->plan(call);
  throw DeviceError("no CUDA kernel for op '" + s.op->name + "'");
}

void CudaExecutable::add_tasks(const PrepareOptions& options) {
  const std::size_t first = tasks_.size();
  std::size_t at = first;
  try {
    const Upcoming next{steps_.subspan(first), options, gpu_, written_};
    auto [steps, plan] = fusion_of(next);
    at += steps.made_by;
    for (std::size_t i = 0; i < steps.count; ++i)
      tasks_.push_back({next.call(i), nullptr, i < steps.made_by ? "next" : "previous"});
    Task& t = tasks_[at];
    t.plan = plan ? std::move(plan) : plan_unfused(steps_[at], t.call, options);
    std::size_t& bytes = is_on_side_stream(steps_[at]) ? side_bytes_ : workspace_bytes_;
    bytes = std::max(bytes, aligned(t.plan->workspace(t.call)));
  } catch (const DeviceError& e) {
    throw refusal(steps_[at], e.what());
  }
}

CudaExecutable::~CudaExecutable() {
  cudaSetDevice(gpu_.ordinal);  // errors were reported where they occurred
  std::erase(programs_, this);
  cudaStreamSynchronize(stream_);
  for (cudaGraphExec_t g : {graph_, timed_})
    if (g) cudaGraphExecDestroy(g);
  for (cudaEvent_t e : events_) cudaEventDestroy(e);
}

void CudaExecutable::enqueue(std::size_t step, cudaStream_t on, std::byte* workspace) {
  const Stream stream{on, gpu_, workspace, {fault(), static_cast<int>(step)}};
  for (const AddUp& a : deferred_sums_)
    if (a.before == step) add_up(stream, a.sums);
  if (step == tasks_.size()) return;
  const Task& t = tasks_[step];
  if (!t.plan) return;
  t.plan->launch(stream, t.call);
  if (const cudaError_t status = cudaPeekAtLastError(); status != cudaSuccess)
    fail(status, steps_[step].name + " " + at_line(steps_[step].where));
}

void CudaExecutable::clear_fault() {
  const Fault none{Fault::none, 0, 0, 0, 0};
  staging_.write(memory_.results, reinterpret_cast<const std::byte*>(&none), sizeof none, nullptr);
}

void CudaExecutable::bind(std::span<const Step> steps, const ProgramMemory& memory) {
  use_gpu(gpu_.ordinal);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    tasks_[i].call.in = steps[i].in;
    tasks_[i].call.out = steps[i].out;
    tasks_[i].call.attrs = &steps[i].attrs;
  }
  memory_ = memory;
  steps_ = steps;
  clear_fault();
  check(staging_.flush(), "a copy to the GPU");
  graph_ = record({});
}

// Exchanges between ranks run in the same order on all ranks. An exchange on the main stream waits for those
// on the side stream.
void CudaExecutable::enqueue_group(std::size_t first, std::size_t end, SideStream& side) {
  const Step& step = steps_[first];
  if (is_on_side_stream(step))
    return side.run(step, [&](cudaStream_t s) { enqueue(first, s, memory_.workspace + workspace_bytes_); });
  if (rank_attrs_of(*step.op, step.attrs)) side.wait();
  side.wait_before(steps_.subspan(first, end - first));
  for (; first < end; ++first) enqueue(first);
}

// `events` is empty or has one more element than there are steps. Events are recorded before the first step
// and after each step, which also serializes the steps.
cudaGraphExec_t CudaExecutable::record(std::span<const cudaEvent_t> events) {
  const auto stamp = [&](std::size_t i) {
    if (!events.empty())
      check(cudaEventRecordWithFlags(events[i], stream_, cudaEventRecordExternal), "timing");
  };
  SideStream side(stream_);
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a program");
  cudaGraph_t graph = nullptr;
  try {
    stamp(0);
    std::size_t first = 0;
    for (const std::size_t end : ends_) {
      if (events.empty()) enqueue_group(first, end, side);
      for (; first < end; ++first) {
        if (!events.empty()) enqueue(first);
        if (first + 1 == tasks_.size()) side.wait(), enqueue(first + 1);
        stamp(first + 1);
      }
    }
  } catch (...) {
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "recording a program");
  cudaGraphExec_t made = nullptr;
  cudaError_t status = memsets_to_kernels(graph);
  if (status == cudaSuccess) status = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "instantiating a program");
  check(cudaGraphUpload(made, stream_), "uploading a program");
  return made;
}

void CudaExecutable::feed(std::byte* input, const std::byte* host, std::size_t bytes) {
  use_gpu(gpu_.ordinal);
  staging_.write(input, host, bytes, this);
}

void CudaExecutable::run() {
  use_gpu(gpu_.ordinal);
  check(staging_.flush(), "a copy to the GPU");
  unread_ = true;
  if (stepwise_) return run_stepwise();
  if (const cudaError_t status = cudaGraphLaunch(graph_, stream_); status != cudaSuccess) fail_run(status);
}

void CudaExecutable::run_stepwise() {
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    nvtxRangePushA(steps_[i].name.c_str());
    enqueue(i);
    if (i + 1 == tasks_.size()) enqueue(i + 1);
    const cudaError_t status = cudaStreamSynchronize(stream_);
    nvtxRangePop();
    if (status != cudaSuccess) fail(status, steps_[i].name + " " + at_line(steps_[i].where));
  }
}

std::shared_ptr<Transfer> CudaExecutable::transfer(std::span<const Piece> pieces) {
  use_gpu(gpu_.ordinal);
  check(staging_.flush(), "a copy to the GPU");
  const std::shared_ptr<CudaTransfer> t = unused(transfers_);
  t->start(*this, pieces, memory_, stream_, epoch_);
  return t;
}

bool CudaExecutable::begin_read() {
  if (unread_) faults_ = transfer({});
  return unread_;
}

void CudaExecutable::end_read() {
  const std::shared_ptr<Transfer> faults = std::exchange(faults_, nullptr);
  if (!faults) return;
  unread_ = false;
  faults->wait();
}

void CudaExecutable::fail_run(cudaError_t status) const {
  if (ranks_) ranks_->check_lost();
  std::string what = "running a program of " + std::to_string(steps_.size()) + " steps";
  if (!steps_.empty())
    what += " from " + steps_.front().name + " to " + steps_.back().name + " " + at_line(steps_.back().where);
  fail(status, what);
}

void CudaExecutable::report(const Fault& f, int epoch) {
  if (f.step == Fault::none) {
    if (ranks_) ranks_->check_lost();
    return;
  }
  if (epoch == epoch_) {
    if (const cudaError_t status = cudaStreamSynchronize(stream_); status != cudaSuccess) fail_run(status);
    ++epoch_;
    if (thrown_.any.exchange(false)) reported_ = std::exchange(thrown_.what, nullptr);
    clear_fault();
  }
  if (f.position == Fault::thrown && reported_) std::rethrow_exception(reported_);
  const Step& s = steps_[static_cast<std::size_t>(f.step)];
  throw Error("[" + s.name + "] index " + std::to_string(f.index) + " at position " +
              std::to_string(f.position) + " is out of range: expected 0 to " + std::to_string(f.size - 1) +
              " " + at_line(s.where));
}

std::string CudaExecutable::choice(std::size_t step) const {
  const Task& t = tasks_[step];
  if (!t.plan) return std::string("done by the ") + t.computed_by + " step";
  if (runs_on_host(steps_[step])) return "the op's own C++ function, on the host";
  std::string s = "sm_" + std::to_string(gpu_.capability);
  if (const std::string own = t.plan->choice(t.call); !own.empty()) s += ", " + own;
  if (const std::string chain = fused_text(*steps_[step].op, steps_[step].attrs); !chain.empty())
    s += ", fused " + chain;
  return s;
}

// Runs a separate graph with events between the steps. If they were launched one at a time, short steps would
// wait for the host.
std::vector<double> CudaExecutable::profile() {
  use_gpu(gpu_.ordinal);
  if (!timed_) {
    while (events_.size() < tasks_.size() + 1) check(cudaEventCreate(&events_.emplace_back()), "an event");
    timed_ = record(events_);
  }
  check(staging_.flush(), "a copy to the GPU");
  unread_ = true;
  check(cudaGraphLaunch(timed_, stream_), "timing a program");
  transfer({})->wait();
  std::vector<double> seconds;
  for (std::size_t i = 0; i < tasks_.size(); ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[i], events_[i + 1]), "timing");
    seconds.push_back(ms * 1e-3);
  }
  return seconds;
}

}  // namespace tg::cuda
