#include "backends/cuda/runtime/host_kernel.h"

#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/memory.h"
#include "core/base/alignment.h"
#include "core/run/backend_steps.h"

namespace tg::cuda {

namespace {

struct HostPlan final : KernelPlan {
  HostPlan(const Step& s, Thrown& t)
      : step(s),
        function(&s.op->host),
        thrown(&t),
        attrs(&s.attrs),
        in(host_views(s.in)),
        out(host_views(s.out)) {}
  ~HostPlan() override { cudaFreeHost(memory); }
  void launch(const Stream& s, const Call& c) const override;

  HostStep step;
  const HostKernel* function;
  Thrown* thrown;
  const Attrs* attrs;
  mutable std::vector<HostView> in, out;  // in this plan's pinned memory
  std::byte* memory = nullptr;
  int* threw = nullptr;  // whether the last call threw; also in pinned memory
};

std::size_t bytes_of(const HostView& v) {
  return static_cast<std::size_t>(v.numel()) * size_of(v.dtype);
}

void call_function(void* data) {
  const auto& plan = *static_cast<const HostPlan*>(data);
  *plan.threw = 0;
  if (plan.thrown->any.load()) return;
  try {
    (*plan.function)(plan.in, plan.out, *plan.attrs);
  } catch (...) {
    plan.thrown->what = exception_of(plan.step);
    plan.thrown->any.store(true);
    *plan.threw = 1;
  }
}

void HostPlan::launch(const Stream& s, const Call& c) const {
  for (std::size_t i = 0; i < c.in.size(); ++i)
    if (bytes_of(in[i]) > 0)
      check(cudaMemcpyAsync(in[i].data, c.in[i].data, bytes_of(in[i]), cudaMemcpyDeviceToHost, s.stream),
            "a copy for a host function");
  check(cudaLaunchHostFunc(s.stream, &call_function, const_cast<HostPlan*>(this)), "a host function");
  note_thrown(s, threw);
  for (std::size_t i = 0; i < c.out.size(); ++i)
    if (bytes_of(out[i]) > 0)
      check(cudaMemcpyAsync(c.out[i].data, out[i].data, bytes_of(out[i]), cudaMemcpyHostToDevice, s.stream),
            "a copy from a host function");
}

}  // namespace

PlanPtr plan_host(const Step& step, Thrown& thrown) {
  auto plan = std::make_unique<HostPlan>(step, thrown);
  std::size_t bytes = 0;
  const auto place = [&](std::vector<HostView>& all) {
    for (HostView& v : all) {
      v.data = plan->memory + bytes;
      bytes += aligned_bytes(bytes_of(v));
    }
  };
  place(plan->in), place(plan->out);
  plan->memory = pinned_memory(bytes + 64, "a host function");
  plan->threw = reinterpret_cast<int*>(plan->memory + bytes);
  bytes = 0;
  place(plan->in), place(plan->out);
  return plan;
}

}  // namespace tg::cuda
