// The CPU backend: aligned memory, kernels selected by op name, and an executor. The executor runs a whole
// program as one job of the thread pool. Each large step is a stage of the job, and several threads share it.
// Smaller steps run without a barrier on the thread that ended the previous stage.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <utility>

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/cost.h>
#include "backends/cpu/expression.h"
#include "backends/cpu/kernel.h"
#include "backends/cpu/pointwise.h"
#include "backends/cpu/pool.h"
#include "core/base/alignment.h"
#include "core/compile/fused_reductions.h"
#include "core/graph/op_attrs.h"
#include "core/os/memory.h"
#include "core/os/system.h"
#include "core/run/backend_steps.h"

namespace tg::cpu {

namespace {

std::string mebibytes(std::size_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

// Minimum time of a step that threads share. It is about the cost of two barriers.
constexpr double worth_sharing_seconds = 3e-6;

// Large blocks use pages of this size if the system supports them. A GEMM accesses one page per row of a
// transposed operand. With small pages, the page lookups would take longer than the reads.
constexpr std::size_t huge_page = std::size_t{2} << 20;

double estimated_seconds(const Step& s) {
  Cost c = cost_of(s);
  double elements = 0;  // number of elements of an elementwise step
  for (const Arg& a : s.in)
    c.bytes += static_cast<double>(a.layout.numel()) * static_cast<double>(size_of(a.dtype));
  for (const Arg& a : s.out) {
    c.bytes += static_cast<double>(a.layout.numel()) * static_cast<double>(size_of(a.dtype));
    elements = static_cast<double>(a.layout.numel());  // all outputs have the same shape
  }
  if (s.op == &fused_reduction_op) elements = static_cast<double>(s.attrs.as<FusedReduction>().made.numel());
  if (const FusedAttrs* chain = fused_text_of(*s.op, s.attrs))
    c.flops += elements * 4 * static_cast<double>(chain->code.size());
  return c.bytes / 20e9 + c.flops / 40e9;
}

// Runs a user-defined op's C++ function as if it were a kernel.
struct HostPlan {
  HostStep step;
  const HostKernel* function;
  std::exception_ptr* thrown;
  mutable std::vector<HostView> in, out;  // stored here so that runs allocate nothing; one run at a time
};

void run_host(Worker& w, const Call& c) {
  const auto& plan = *static_cast<const HostPlan*>(c.plan);
  for (std::size_t i = 0; i < c.in.size(); ++i) plan.in[i].data = c.in[i].data;
  for (std::size_t i = 0; i < c.out.size(); ++i) plan.out[i].data = c.out[i].data;
  try {
    const InUserFunction may_run_programs;
    (*plan.function)(plan.in, plan.out, *c.attrs);
  } catch (...) {
    *plan.thrown = exception_of(plan.step);
    w.fault->report(w.step, {});  // later steps do not run, because their operands were not written
  }
}

constexpr Kernel host_kernel{.run = &run_host, .on_caller = true};

// A transfer starts after the run has finished, so it copies immediately.
struct Copies final : Transfer {
  std::vector<std::byte> memory;
  bool done() override { return true; }
  void wait() override {}
};

class CpuExecutable final : public Executable, private Job {
 public:
  CpuExecutable(std::span<const Step> steps, int threads, const PrepareOptions& options)
      : threads_(threads), batch_invariant_(options.batch_invariant), ranks_(options.ranks), steps_(steps) {
    tasks_.reserve(steps.size());
    for (const Step& s : steps) add(s);
    workspace_bytes_ = shared_;
    for (int t = 0; t < threads; ++t)
      workspace_bytes_ = add_bytes(workspace_bytes_, per_thread_, "the kernels' workspace");
  }

  std::size_t workspace_bytes() const override { return workspace_bytes_; }

  void bind(std::span<const Step> steps, const ProgramMemory& memory) override {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      tasks_[i].call.in = steps[i].in;
      tasks_[i].call.out = steps[i].out;
      tasks_[i].call.attrs = &steps[i].attrs;
    }
    workspace_ = memory.workspace;
    steps_ = steps;
  }

  void feed(std::byte* input, const std::byte* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(input, host, bytes);
  }

  void run() override {
    ends_.clear();
    dispatch();
  }

  std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) override {
    const std::shared_ptr<Copies> made = unused(transfers_);
    Copies& copies = *made;
    std::size_t bytes = 0;
    for (const Piece& p : pieces) bytes += aligned_bytes(p.bytes);
    try {
      copies.memory.resize(bytes);
    } catch (const std::bad_alloc&) {
      throw OutOfMemory("[cpu] no memory for a copy of the results: " + mebibytes(bytes) + " needed");
    }
    copies.pieces.assign(pieces.begin(), pieces.end());
    copies.data.clear();
    std::byte* to = copies.memory.data();
    for (const Piece& p : pieces) {
      if (p.bytes > 0) std::memcpy(to, p.from, p.bytes);
      copies.data.push_back(to);
      to += aligned_bytes(p.bytes);
    }
    return made;
  }

  std::vector<double> profile() override {
    ends_.assign(tasks_.size() + 1, {});
    dispatch();
    std::vector<double> seconds;
    for (std::size_t i = 0; i < tasks_.size(); ++i)
      seconds.push_back(std::chrono::duration<double>(ends_[i + 1] - ends_[i]).count());
    ends_.clear();
    return seconds;
  }

  std::string choice(std::size_t step) const override {
    const Task& t = tasks_[step];
    char text[200] = "";
    if (t.kernel->choice) t.kernel->choice(t.call, t.parallel ? threads_ : 1, text, sizeof text);
    std::string s = t.kernel == &host_kernel ? "the op's own C++ function" : std::string(kernel_set().isa);
    if (text[0] != '\0') s += ", " + std::string(text);
    if (const std::string chain = fused_text(*steps_[step].op, steps_[step].attrs); !chain.empty())
      s += ", fused " + chain;
    return s + (t.parallel ? ", shared by " + std::to_string(threads_) + " threads" : ", by one thread");
  }

 private:
  struct Task {
    const Kernel* kernel;
    Call call;
    std::shared_ptr<const void> plan;
    bool parallel;
  };

  void add(const Step& s) {
    // A reduction with fused elementwise ops uses the reduction's kernel, with the plan of the elementwise
    // ops.
    const Op& op = s.op == &fused_reduction_op ? *s.attrs.as<FusedReduction>().op : *s.op;
    Task t{find_kernel(op.name), {s.in, s.out, &s.attrs, nullptr, batch_invariant_}, nullptr, false};
    std::string why = "no CPU kernel for op '" + s.op->name + "'";
    try {
      if (s.op == &fused_op) t.plan = plan_pointwise(s, kernel_set());
      if (s.op == &fused_reduction_op) t.plan = plan_fused_reduction(s, kernel_set());
      if (const auto plan = plan_expression(s, kernel_set())) t.plan = plan;
      if (rank_attrs_of(*s.op, s.attrs)) t.plan = ranks_;
      if (!t.kernel && s.op->host) {
        t.plan = std::make_shared<HostPlan>(
            HostPlan{HostStep(s), &s.op->host, &thrown_, host_views(s.in), host_views(s.out)});
        t.kernel = &host_kernel;
      }
      t.call.plan = t.plan.get();
      if (t.kernel && t.kernel->reason)
        if (const char* reason = t.kernel->reason(t.call)) throw DeviceError(reason);
    } catch (const DeviceError& e) {
      why = e.what();
      t.kernel = nullptr;
    }
    if (!t.kernel) throw refusal(s, why);
    t.parallel = threads_ > 1 && !t.kernel->on_caller && estimated_seconds(s) > worth_sharing_seconds;
    if (t.kernel->scratch) {
      const Scratch need = t.kernel->scratch(t.call, t.parallel ? threads_ : 1);
      per_thread_ = std::max(per_thread_, aligned_bytes(need.per_thread));
      shared_ = std::max(shared_, aligned_bytes(need.shared));
    }
    tasks_.push_back(std::move(t));
  }

  void dispatch() {
    fault_.clear();
    next_ = 0;
    run_on_pool(threads_, *this);
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
    if (fault_.step() != IndexFault::none) refuse(steps_[static_cast<std::size_t>(fault_.step())]);
  }

  [[noreturn]] void refuse(const Step& s) const {
    const IndexFault::Found& f = fault_.found();
    const auto at = [&](const char* name, int n) { return name + std::to_string(f.pair[n]); };
    const std::string where = f.captured < 0
                                  ? " at position " + std::to_string(f.position) + " is out of range"
                                  : " of captured tensor " + std::to_string(f.captured) + ", axis " +
                                        std::to_string(f.axis) + ", is out of range at" + at(" b = ", 0) +
                                        at(", h = ", 1) + at(", i = ", 2) + at(", t = ", 3);
    throw Error("[" + s.name + "] index " + std::to_string(f.index) + where + ": expected 0 to " +
                std::to_string(f.size - 1) + " " + at_line(s.where));
  }

  // Runs step i, or this thread's share of it.
  void run_step(Worker& w, int thread, std::size_t i) {
    const Task& t = tasks_[i];
    w.scratch = workspace_ + per_thread_ * static_cast<std::size_t>(thread);
    w.shared = workspace_ + per_thread_ * static_cast<std::size_t>(threads_);
    w.fault = &fault_;
    w.step = static_cast<int>(i);
    try {
      t.kernel->run(w, t.call);
    } catch (const RankLost&) {  // rethrown unchanged, because the step has no fault
      keep_exception(static_cast<int>(i), std::current_exception());
    } catch (...) {  // any other exception
      keep_exception(static_cast<int>(i), exception_of(HostStep(steps_[i])));
    }
  }

  void keep_exception(int step, std::exception_ptr exception) {
    const std::lock_guard lock(thrown_mutex_);
    if (!thrown_) thrown_ = std::move(exception);
    fault_.report(step, {});  // later steps do not run
  }

  // Job: stage i is step i.
  void share(Worker& w, int i) override { run_step(w, w.thread(), static_cast<std::size_t>(i)); }

  int next(int thread) override {
    Worker alone;
    for (;; ++next_) {
      if (!ends_.empty()) ends_[next_] = std::chrono::steady_clock::now();
      // No step runs after a fault.
      if (next_ == tasks_.size() || fault_.step() != IndexFault::none) return end;
      const Task& t = tasks_[next_];
      if (t.parallel) return static_cast<int>(next_++);
      if (t.kernel->on_caller && thread != 0) return for_caller;
      run_step(alone, thread, next_);
    }
  }

  const int threads_;
  const bool batch_invariant_;
  const std::shared_ptr<Communicator> ranks_;
  std::vector<Task> tasks_;
  std::size_t per_thread_ = 0, shared_ = 0, workspace_bytes_ = 0;
  std::byte* workspace_ = nullptr;
  std::size_t next_ = 0;  // the first step that has not begun
  std::vector<std::chrono::steady_clock::time_point>
      ends_;  // start of a timed run and the end of each step; empty in other runs
  std::span<const Step> steps_;
  IndexFault fault_;
  std::vector<std::shared_ptr<Copies>> transfers_;
  std::mutex thrown_mutex_;
  std::exception_ptr thrown_;  // exception of a kernel or a user's function
};

class CpuBackend final : public Backend {
 public:
  std::string name() const override { return os::processor_name(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes, const std::string& what) override {
    // Without this check, the system may promise more memory than it has and kill the process later.
    const std::size_t available = bytes > worth_asking ? available_bytes() : bytes;
    const auto align = std::align_val_t(bytes >= huge_page ? huge_page : 64);
    std::byte* p = nullptr;
    if (bytes <= available) p = static_cast<std::byte*>(::operator new(bytes, align, std::nothrow));
    // `available` is not queried again, because reading a file may need memory that is not available.
    if (!p)
      throw OutOfMemory("[cpu] no memory for " + what + ": " + mebibytes(bytes) + " needed" +
                        (bytes > worth_asking ? ", " + mebibytes(available) + " free" : ""));
    if (bytes >= huge_page) os::prefer_huge_pages(p, bytes);
    return {p, [align](std::byte* q) { ::operator delete(q, align); }};
  }
  std::size_t available_bytes() override { return os::available_memory(); }
  void write(std::byte* device, const std::byte* host, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(device, host, bytes);
  }
  void read(std::byte* host, const std::byte* device, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  std::unique_ptr<Executable> prepare(std::span<const Step> steps, const PrepareOptions& options) override {
    const int threads = options.threads;
    if (threads < 0 || threads > max_threads)
      throw DeviceError("[cpu] " + std::to_string(threads) + " threads requested: expected 0 to " +
                        std::to_string(max_threads));
    return std::make_unique<CpuExecutable>(steps, threads > 0 ? threads : default_threads(), options);
  }
};

}  // namespace

Backend& backend() {
  static auto& cpu = *new CpuBackend;  // never destroyed: programs may run after static objects are destroyed
  return cpu;
}

}  // namespace tg::cpu
