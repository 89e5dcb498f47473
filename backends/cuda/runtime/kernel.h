// The host side of a CUDA kernel, and the table in which the executor finds kernels by op name.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/run/step.h>
#include "backends/cuda/runtime/fault.h"
#include "backends/cuda/runtime/written_memory.h"

namespace tg::cuda {

// Properties of the GPU.
struct Gpu {
  int ordinal = 0;
  int processors = 0;        // multiprocessors
  int capability = 0;        // 80, 90, …
  int shared_per_block = 0;  // bytes, opt-in maximum
  bool hopper = false;       // sm_90a, and the library has code for it
};

// The stream that a kernel is launched on. Launches are recorded once and replayed: what a launch reads on
// the host, pointers included, must stay the same from run to run.
struct Stream {
  cudaStream_t stream;
  const Gpu& gpu;
  std::byte*
      workspace;  // of the size that KernelPlan::workspace returned, 256-byte aligned, contents undefined
  Faults faults;  // where index checks report
};

// One call: operands in the op's order, with their addresses, and with any strides unless the op says
// otherwise.
struct Call {
  std::span<const Arg> in, out;
  const Attrs* attrs;
  const Gpu& gpu;
  bool tf32;             // f32 products may round their operands
  bool in_order;         // kernels that could add in any order must add in a fixed order
  bool batch_invariant;  // the order of a row's additions must not depend on the number of rows
  const WrittenMemory* written = nullptr;  // what the program's steps write; null: any memory
};

// Whether no step of the call's program writes the operand.
inline bool is_constant(const Arg& a, const Call& call) {
  return call.written && !call.written->overlaps(a);
}

// A sum over the blocks of a norm's gradient, z_w or z_b, which no step before the optimizer reads: what the
// kernels of several norms leave of them is added up by one kernel.
// Element i of an output: the sum of `parts` numbers, `stride` apart, from partial[i] on, in their order.
struct SumLeft {
  const float* partial;
  std::byte* to;
  DType type;
  std::int64_t step;  // of `to`
  int n, parts, stride;
};

// How a kernel computes one call, or one call and the steps next to it. A kernel's own type of plan stores
// what was chosen for the call when the program was compiled.
class KernelPlan {
 public:
  KernelPlan() = default;
  KernelPlan(const KernelPlan&) = delete;
  KernelPlan& operator=(const KernelPlan&) = delete;
  virtual ~KernelPlan() = default;
  // Enqueues the work; never waits, never allocates. The executor finds launch errors.
  virtual void launch(const Stream&, const Call&) const = 0;
  // Bytes of workspace that it needs. Throws DeviceError for a call that it cannot compute.
  virtual std::size_t workspace(const Call&) const { return 0; }
  // Describes how it computes the call: algorithm, tiles.
  virtual std::string choice(const Call&) const { return {}; }
  // Sums that launch() leaves to add_up().
  virtual std::vector<SumLeft> deferred_sums(const Call&) const { return {}; }
};
using PlanPtr = std::unique_ptr<const KernelPlan>;

// Adds up what the plans of norms' gradients leave (KernelPlan::deferred_sums), in one launch for 32 of them.
void add_up(const Stream& s, std::span<const SumLeft> sums);

// A plan that is made of its call alone.
template <class Plan>
PlanPtr plan_as(const Call& call) {
  return std::make_unique<Plan>(call);
}

// The kernel of an op. It plans a call once, when the program is compiled: it chooses algorithms and compiles
// code. A kernel that has nothing to choose is a function that launches it, and one for its workspace.
class Kernel {
 public:
  using Planner = PlanPtr(const Call&);
  using Launch = void(const Stream&, const Call&);
  using Workspace = std::size_t(const Call&);
  constexpr Kernel(Planner* planner) : planner_(planner) {}
  constexpr Kernel(Launch* launch, Workspace* workspace = nullptr) : launch_(launch), workspace_(workspace) {}
  PlanPtr plan(const Call& call) const;

 private:
  Planner* planner_ = nullptr;
  Launch* launch_ = nullptr;
  Workspace* workspace_ = nullptr;
};

// The kernel for an op, null if there is none.
const Kernel* find_kernel(std::string_view op);

}  // namespace tg::cuda
