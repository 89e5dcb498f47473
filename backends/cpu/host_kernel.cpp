#include "backends/cpu/host_kernel.h"

namespace tg::cpu {

namespace {

struct HostPlan {
  const HostKernel* function;
  std::exception_ptr* thrown;
  mutable std::vector<HostView> in, out;  // one run at a time; held here so that runs allocate nothing
};

std::vector<HostView> views(std::span<const Arg> args) {
  std::vector<HostView> v;
  for (const Arg& a : args) {
    if (!a.layout.is_contiguous())
      throw DeviceError("its host function takes row-major operands: give it contiguous(x)");
    v.push_back({a.dtype, a.layout.shape, nullptr});
  }
  return v;
}

void run(Worker&, const Call& c) {
  const auto& plan = *static_cast<const HostPlan*>(c.plan);
  if (*plan.thrown) return;  // what it would read was not written
  for (std::size_t i = 0; i < c.in.size(); ++i) plan.in[i].data = c.in[i].data;
  for (std::size_t i = 0; i < c.out.size(); ++i) plan.out[i].data = c.out[i].data;
  try {
    (*plan.function)(plan.in, plan.out, *c.attrs);
  } catch (...) {
    *plan.thrown = std::current_exception();
  }
}

}  // namespace

const Kernel host_kernel{&run};

std::shared_ptr<const void> plan_host(const Step& step, std::exception_ptr& thrown) {
  return std::make_shared<HostPlan>(HostPlan{&step.op->host, &thrown, views(step.in), views(step.out)});
}

}  // namespace tg::cpu
