// The form of a CPU kernel, the tables in which the executor finds kernels by op name, and the kernels that
// are the same for all instruction sets.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include <tilegrad/core/run/step.h>
#include "backends/cpu/worker.h"

namespace tg {
class Backend;
}

namespace tg::cpu {

// One call: operands in the op's order (with any strides unless the op says otherwise), its attributes, and
// its plan (null for kernels without one).
struct Call {
  std::span<const Arg> in, out;
  const Attrs* attrs;
  const void* plan;
  bool batch_invariant;  // the order of a row's additions must not depend on the number of rows
};

struct Scratch {
  std::size_t per_thread = 0, shared = 0;  // bytes; each block is 64-byte aligned
};

struct Kernel {
  // Any number of threads of the worker's team call it, at once and perhaps late (Worker). It need not wait
  // for the other threads; the executor does.
  void (*run)(Worker&, const Call&);
  // Scratch memory that the worker must provide; none if left out.
  Scratch (*scratch)(const Call&, int threads) = nullptr;
  // Describes how it computes a call: algorithm, tiles. Writes at most `size` bytes with the closing 0.
  void (*choice)(const Call&, int threads, char* text, std::size_t size) = nullptr;
  // Why it cannot compute a call as its attributes ask; null if it can.
  const char* (*reason)(const Call&) = nullptr;
  // It must run on the thread that called Program::run: it calls a user's function, or waits for other
  // processes.
  bool on_caller = false;
};

struct KernelEntry {
  std::string_view op;
  const Kernel* kernel;
};

// A pointwise op on one block of values: out[i] = f(a[i], b[i], c[i]) for i < n, in the compute type (double,
// float or int64). Blocks do not overlap, or are the same.
using BlockFn = void (*)(void* out, const void* a, const void* b, const void* c, std::int64_t n);

struct BlockEntry {
  std::string_view op;
  BlockFn f64, f32, i64;  // null where the op is not defined for the type
};

// Conversion between memory and blocks: n elements, `stride` elements apart in memory (0 repeats the first).
using LoadFn = void (*)(void* block, const void* memory, std::int64_t stride, std::int64_t n);
using StoreFn = void (*)(void* memory, const void* block, std::int64_t stride, std::int64_t n);

// Everything compiled for one instruction set.
struct KernelSet {
  std::string_view isa;
  std::span<const KernelEntry> kernels;
  const std::span<const BlockEntry>* blocks;
  LoadFn (*load)(DType memory, DType block);  // null where there is none
  StoreFn (*store)(DType block, DType memory);
};

// The best set that this machine runs, or the one that the environment variable TG_ISA names (baseline, avx2,
// avx512). Unless TG_ISA names a set, avx512 multiplies bf16 on AMX tiles if the processor has them. Throws
// DeviceError for a name that is unknown or that this machine cannot run.
const KernelSet& kernel_set();
// All sets this machine runs, best last.
std::span<const KernelSet* const> runnable_sets();

// The unit that multiplies bf16 matrices on this processor. All accumulate in f32: f32 multiply-adds after
// conversion, the dot product of pairs (avx512_bf16), or products of tiles (AMX). Pairs and tiles treat
// denormal operands and sums as zeros.
enum class Bf16Unit { f32, pairs, tiles };

// The fastest one here. Tiles are used unless TG_ISA names an instruction set.
Bf16Unit bf16_unit();
// Whether this process may use AMX tiles for bf16. The first call requests permission from the system.
bool has_bf16_tiles();

// Registers a kernel of a user-defined op; it takes precedence over a built-in one.
void register_kernel(std::string op, Kernel kernel);
// The kernel for an op, null if there is none.
const Kernel* find_kernel(std::string_view op);

// Kernels of the ops of ops/ranks.cpp: ranks exchange data through memory that all of them see. They are
// there to test programs of several ranks without GPUs, not to be fast. A call's plan is the Communicator,
// null for a group of one. One thread does all the work. They throw RankLost.
void all_reduce(Worker&, const Call&);
void all_gather(Worker&, const Call&);
void reduce_scatter(Worker&, const Call&);
void all_to_all(Worker&, const Call&);
void ppermute(Worker&, const Call&);
void local_shard(Worker&, const Call&);

// The backend that runs them, with a thread pool shared by the whole process.
Backend& backend();

}  // namespace tg::cpu
