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

// Properties of a GPU.
struct Gpu {
  int ordinal = 0;
  int processors = 0;        // number of multiprocessors
  int capability = 0;        // 80, 90, …
  int shared_per_block = 0;  // bytes, opt-in maximum
  bool hopper = false;       // sm_90a, and the library contains code for it
};

// The stream of a kernel launch. Launches are recorded once and replayed. Everything that a launch reads on
// the host, including pointers, must therefore stay the same in every run.
struct Stream {
  cudaStream_t stream;
  const Gpu& gpu;
  // Memory of the size that KernelPlan::workspace returned, aligned to 256 bytes, with undefined contents.
  std::byte* workspace;
  Faults faults;  // where index checks report
};

// One call. Operands are in the op's order, with their addresses. Strides are arbitrary unless the op
// restricts them.
struct Call {
  std::span<const Arg> in, out;
  const Attrs* attrs;
  const Gpu& gpu;
  bool tf32;             // f32 GEMMs may round their operands to TF32
  bool in_order;         // kernels must add in a fixed order even if any order would be valid
  bool batch_invariant;  // the summation order of a row must not depend on the number of rows
  const WrittenMemory* written = nullptr;  // memory that the program's steps write; null: any memory
};

// Whether no step of the call's program writes the operand.
inline bool is_constant(const Arg& a, const Call& call) {
  return call.written && !call.written->overlaps(a);
}

// A deferred sum over blocks, for the gradient of a norm's weight or bias (z_w or z_b). No step before the
// optimizer reads it. One kernel computes the deferred sums of several norms. Element i of an output is a sum
// of `parts` elements, which start at partial[i] and have stride `stride`. They are added in order.
struct DeferredSum {
  const float* partial;
  std::byte* to;
  DType type;
  std::int64_t step;  // of `to`
  int n, parts, stride;
};

// A plan for how a kernel computes one call, or one call and adjacent steps. It stores the choices that were
// made when the program was compiled.
class KernelPlan {
 public:
  KernelPlan() = default;
  KernelPlan(const KernelPlan&) = delete;
  KernelPlan& operator=(const KernelPlan&) = delete;
  virtual ~KernelPlan() = default;
  // Enqueues the work. Never waits and never allocates. The executor detects launch errors.
  virtual void launch(const Stream&, const Call&) const = 0;
  // Returns the required bytes of workspace. Throws DeviceError for a call that the kernel cannot compute.
  virtual std::size_t workspace(const Call&) const { return 0; }
  // Describes how the kernel computes the call: algorithm, tiles.
  virtual std::string choice(const Call&) const { return {}; }
  // Returns the sums that launch() defers to add_up().
  virtual std::vector<DeferredSum> deferred_sums(const Call&) const { return {}; }
};
using PlanPtr = std::unique_ptr<const KernelPlan>;

// Computes the deferred sums of norm gradients (KernelPlan::deferred_sums). One launch computes 32 sums.
void add_up(const Stream& s, std::span<const DeferredSum> sums);

// Makes a plan that only needs its call.
template <class Plan>
PlanPtr plan_as(const Call& call) {
  return std::make_unique<Plan>(call);
}

// The kernel of an op. When the program is compiled, it plans each call once. It chooses algorithms and
// compiles code. A kernel without choices consists of a launch function and an optional workspace function.
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

// Returns the kernel for an op, or null if there is none.
const Kernel* find_kernel(std::string_view op);

}  // namespace tg::cuda
