#include "backends/cuda/executable.h"

#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/graph/graph.h>
#include "backends/cuda/algorithms.h"
#include "backends/cuda/cast_list.h"
#include "backends/cuda/check.h"
#include "backends/cuda/epilogue.h"
#include "backends/cuda/graph.h"
#include "backends/cuda/ranks.h"
#include "backends/cuda/rope.h"
#include "backends/cuda/small_products.h"
#include "backends/cuda/small_steps.h"
#include "backends/cuda/sum_of_few.h"
#include "backends/cuda/turned_product.h"
#include "core/compile/reduced_chains.h"
#include "core/graph/op_attrs.h"
#include "core/run/backend_steps.h"

namespace tg::cuda {

namespace {

// As kernels expect their workspace.
std::size_t aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Sums of gradients of which a rank keeps its piece: nothing reads them before the update.
bool is_on_lane(const Step& step) {
  return step.op == &scatter_sum_op;
}

// Whether the op has no kernel but a function on host memory.
bool runs_on_host(const Step& step) {
  return step.op->host && !find_kernel(step.op->name);
}

}  // namespace

CudaExecutable::CudaExecutable(std::span<const Step> steps, const PrepareOptions& options, const Gpu& gpu,
                               cudaStream_t stream, Staging& staging)
    : gpu_(gpu), stream_(stream), staging_(staging), written_(steps), stepwise_(stepwise()) {
  tasks_.reserve(steps.size());
  steps_ = steps;
  const SharedChoices choices(options.ranks.get());
  while (tasks_.size() < steps.size()) add_tasks(options), ends_.push_back(tasks_.size());
  plan_sums_left();
}

// As late as one of them is read: then most of the others are there, too.
void CudaExecutable::plan_sums_left() {
  std::vector<SumLeft> left;
  std::vector<const Arg*> outputs;  // of these sums
  const auto add_up_before = [&](std::size_t step) {
    if (!left.empty()) sums_left_.push_back({step, std::exchange(left, {})});
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
      const std::vector<SumLeft> more = tasks_[first].plan->sums_left(tasks_[first].call);
      for (std::size_t i = 0; i < more.size(); ++i) {
        if (steps_[first].reads[1 + i] == 0) continue;  // its memory is another value's soon
        outputs.push_back(&steps_[first].out[1 + i]);
        left.push_back(more[i]);
      }
    }
  }
  add_up_before(steps_.size());
}

Call CudaExecutable::call_of(std::size_t step, const PrepareOptions& options) const {
  const Step& s = steps_[step];
  return {s.in, s.out, &s.attrs, gpu_, options.tf32, options.in_order, options.rows_alone, &written_};
}

bool CudaExecutable::is_of_rows(std::size_t step, const PrepareOptions& options) const {
  return steps_[step].op->name == "matmul" && is_product_of_rows(call_of(step, options));
}

// The calls of the steps from `first` on that are small products and need nothing of each other.
std::vector<Call> CudaExecutable::products_at(std::size_t first, const PrepareOptions& options) const {
  std::vector<Call> calls;
  for (std::size_t i = first; i < steps_.size() && steps_[i].op->name == "matmul"; ++i) {
    const Call c = call_of(i, options);
    if (!is_small_product(c) || !is_independent(c, calls)) break;
    if (i + 1 < steps_.size() && is_gelu_of(steps_[i], steps_[i + 1])) break;
    calls.push_back(c);
  }
  return calls;
}

// How many steps from `first` on are small, but for one that is a sum for the product after it.
std::size_t CudaExecutable::small_steps_at(std::size_t first, const PrepareOptions& options) const {
  const bool in_order = options.in_order || options.rows_alone;
  const std::size_t n = small_steps_together(steps_.subspan(first), in_order), end = first + n;
  if (n == 0 || end == steps_.size() || !is_sum_for(steps_[end - 1], steps_[end])) return n;
  return small_steps_together(steps_.subspan(first, n - 1), in_order);
}

// Ropes from `first` on with the attention behind them, or with each other; or attention with the ropes
// behind it.
CudaExecutable::Joint CudaExecutable::ropes_at(std::size_t first, const PrepareOptions& options) const {
  const auto call = [&](std::size_t i) { return call_of(i, options); };
  const auto is_rope = [&](std::size_t i) { return i < steps_.size() && steps_[i].op->name == "rope"; };
  if (is_rope(first)) {
    const std::size_t attention = first + 1 + is_rope(first + 1), n = attention - first;
    const auto ropes = steps_.subspan(first, n);
    if (attention < steps_.size() &&
        std::ranges::all_of(ropes, [&](const Step& s) { return is_rope_for(s, steps_[attention]); }))
      if (auto plan = plan_with_ropes(ropes, call(attention))) return {attention, attention, std::move(plan)};
    if (n == 2) return {first, first + 1, plan_two_ropes(call(first), call(first + 1))};
    return {first, first, nullptr};
  }
  std::size_t last = first;
  while (last < first + 2 && last + 1 < steps_.size() && is_rope_of(steps_[first], steps_[last + 1])) ++last;
  if (last == first) return {first, first, nullptr};
  for (std::size_t rope = first + 1; rope <= last; ++rope)  // what is rotated is not stored as it was
    if (steps_[first].reads[steps_[rope].in[0].data == steps_[first].out[0].data ? 0 : 1] > 1)
      return {first, first, nullptr};
  return {first, last, plan_with_ropes(steps_.subspan(first + 1, last - first), call(first))};
}

// The steps from `first` on that one kernel computes: casts one after the other; small steps; small products
// that do not need each other's results; a product with the sum or norm before it, the gelu after it, or
// both; attention with what is added to its cache, or with ropes; two ropes; a norm's gradient with the sum
// after it. Without a plan it is the first step alone.
CudaExecutable::Joint CudaExecutable::joint_at(std::size_t first, const PrepareOptions& options) const {
  const auto is_next = [&](auto&& related, std::size_t i) {
    return i + 1 < steps_.size() && related(steps_[i], steps_[i + 1]);
  };
  const auto call = [&](std::size_t i) { return call_of(i, options); };
  if (const std::size_t casts = casts_together(steps_.subspan(first)); casts > 1)
    return {first, first + casts - 1, plan_cast_list(steps_.subspan(first, casts))};
  if (const std::vector<Call> products = products_at(first, options); products.size() > 1)
    return {first, first + products.size() - 1, plan_small_products(products)};
  if (const std::size_t small = small_steps_at(first, options); small > 0)
    return {first, first + small - 1, plan_small_steps(steps_.subspan(first, small), gpu_)};
  if (!options.in_order && !options.rows_alone && is_sum_of_few(steps_[first]))
    return {first, first, plan_sum_of_few(steps_[first], gpu_)};
  if (is_next(is_added_for, first))
    return {first + 1, first + 1,
            plan_with_added_rows(steps_[first], call(first + 1), steps_[first + 1].op->name == "paged_attn")};
  if (steps_[first].op->name == "rope" || steps_[first].op->name == "flash_attn_backward")
    return ropes_at(first, options);
  if (is_next(is_sum_of, first))
    return {first, first + 1, plan_with_sum(call(first), steps_[first + 1], steps_[first].reads[0] > 1)};
  const bool prepares =
      (is_next(is_sum_for, first) || is_next(is_norm_for, first)) && is_of_rows(first + 1, options);
  const std::size_t at = first + prepares, last = at + is_next(is_gelu_of, at);
  if (first == last && steps_[first].op->name == "matmul" && !is_of_rows(first, options))
    return {first, first, plan_turned_product(call(first))};
  if (first == last) return {first, first, nullptr};
  if (!is_of_rows(at, options)) return {at, last, plan_with_gelu(call(at), steps_[last])};
  return {at, last,
          plan_of_rows(call(at), written_, prepares ? &steps_[first] : nullptr,
                       at < last ? &steps_[last] : nullptr)};
}

PlanPtr CudaExecutable::plan_alone(std::size_t step, const PrepareOptions& options) {
  const Step& s = steps_[step];
  if (rank_attrs_of(*s.op, s.attrs)) {
    ranks_ = options.ranks;
    return plan_ranks(s, options.ranks ? NcclGroup::of(options.ranks, gpu_.ordinal) : nullptr);
  }
  if (runs_on_host(s)) return plan_host(s, thrown_);
  if (const Kernel* kernel = find_kernel(s.op->name)) return kernel->plan(call_of(step, options));
  throw DeviceError("no CUDA kernel for op '" + s.op->name + "'");
}

void CudaExecutable::add_tasks(const PrepareOptions& options) {
  const std::size_t first = tasks_.size();
  std::size_t at = first;
  try {
    auto [made_by, last, plan] = joint_at(first, options);
    at = plan ? made_by : first, last = plan ? last : first;
    for (std::size_t i = first; i <= last; ++i)
      tasks_.push_back({call_of(i, options), nullptr, i < at ? "next" : "previous"});
    Task& t = tasks_[at];
    t.plan = plan ? std::move(plan) : plan_alone(at, options);
    std::size_t& bytes = is_on_lane(steps_[at]) ? lane_bytes_ : workspace_bytes_;
    bytes = std::max(bytes, aligned(t.plan->workspace(t.call)));
  } catch (const DeviceError& e) {
    throw refusal(steps_[at], e.what());
  }
}

CudaExecutable::~CudaExecutable() {
  cudaStreamSynchronize(stream_);
  for (cudaGraphExec_t g : {graph_, timed_})
    if (g) cudaGraphExecDestroy(g);
  for (cudaEvent_t e : events_) cudaEventDestroy(e);
}

void CudaExecutable::enqueue(std::size_t step, cudaStream_t on, std::byte* workspace) {
  const Stream stream{on, gpu_, workspace, {fault(), static_cast<int>(step)}};
  for (const AddUp& a : sums_left_)
    if (a.before == step) add_up(stream, a.sums);
  if (step == tasks_.size()) return;
  const Task& t = tasks_[step];
  if (!t.plan) return;
  t.plan->launch(stream, t.call);
  if (const cudaError_t status = cudaPeekAtLastError(); status != cudaSuccess)
    fail(status, steps_[step].name + " " + at_line(steps_[step].where));
}

void CudaExecutable::bind(std::span<const Step> steps, const ProgramMemory& memory) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    tasks_[i].call.in = steps[i].in;
    tasks_[i].call.out = steps[i].out;
    tasks_[i].call.attrs = &steps[i].attrs;
  }
  memory_ = memory;
  steps_ = steps;
  const Fault none{Fault::none, 0, 0, 0, 0};
  staging_.write(memory_.results, reinterpret_cast<const std::byte*>(&none), sizeof none, nullptr);
  check(staging_.flush(), "a copy to the GPU");
  graph_ = record({});
}

// Exchanges between ranks run in one order on all of them: one that is not on the lane waits for those that
// are.
void CudaExecutable::enqueue_group(std::size_t first, std::size_t end, Lane& lane) {
  const Step& step = steps_[first];
  if (is_on_lane(step))
    return lane.run(step, [&](cudaStream_t s) { enqueue(first, s, memory_.workspace + workspace_bytes_); });
  if (rank_attrs_of(*step.op, step.attrs)) lane.wait();
  lane.wait_before(steps_.subspan(first, end - first));
  for (; first < end; ++first) enqueue(first);
}

// events: none, or one more than there are steps, recorded before the first step and after each: then one
// step runs after the other.
cudaGraphExec_t CudaExecutable::record(std::span<const cudaEvent_t> events) {
  const auto stamp = [&](std::size_t i) {
    if (!events.empty())
      check(cudaEventRecordWithFlags(events[i], stream_, cudaEventRecordExternal), "timing");
  };
  Lane lane(stream_);
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a program");
  cudaGraph_t graph = nullptr;
  try {
    stamp(0);
    std::size_t first = 0;
    for (const std::size_t end : ends_) {
      if (events.empty()) enqueue_group(first, end, lane);
      for (; first < end; ++first) {
        if (!events.empty()) enqueue(first);
        if (first + 1 == tasks_.size()) lane.wait(), enqueue(first + 1);
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
  staging_.write(input, host, bytes, this);
}

void CudaExecutable::run() {
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
  check(staging_.flush(), "a copy to the GPU");
  const std::shared_ptr<CudaTransfer> t = unused(transfers_);
  t->start(*this, pieces, memory_, stream_, epoch_);
  return t;
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
    const Fault none{Fault::none, 0, 0, 0, 0};
    staging_.write(memory_.results, reinterpret_cast<const std::byte*>(&none), sizeof none, nullptr);
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
  if (const std::string chain = chain_text(*steps_[step].op, steps_[step].attrs); !chain.empty())
    s += ", chain " + chain;
  return s;
}

// Runs a separate graph with events between the steps: if they were launched one by one, short steps would
// wait for the host.
std::vector<double> CudaExecutable::profile() {
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
