#include "backends/cpu/kernel.h"

#include "backends/cpu/pool.h"
#include "core/run/backend_steps.h"

namespace tg::cpu {

namespace {

struct HostPlan {
  HostStep step;
  const HostKernel* function;
  std::exception_ptr* thrown;
  mutable std::vector<HostView> in, out;  // one run at a time; held here so that runs allocate nothing
};

void run(Worker& w, const Call& c) {
  const auto& plan = *static_cast<const HostPlan*>(c.plan);
  for (std::size_t i = 0; i < c.in.size(); ++i) plan.in[i].data = c.in[i].data;
  for (std::size_t i = 0; i < c.out.size(); ++i) plan.out[i].data = c.out[i].data;
  try {
    const InUserFunction may_run_programs;
    (*plan.function)(plan.in, plan.out, *c.attrs);
  } catch (...) {
    *plan.thrown = exception_of(plan.step);
    w.fault->report(w.step, {});  // later steps do not run: what they would read was not written
  }
}

}  // namespace

const Kernel host_kernel{.run = &run, .on_caller = true};

std::shared_ptr<const void> plan_host(const Step& step, std::exception_ptr& thrown) {
  return std::make_shared<HostPlan>(
      HostPlan{HostStep(step), &step.op->host, &thrown, host_views(step.in), host_views(step.out)});
}

}  // namespace tg::cpu
