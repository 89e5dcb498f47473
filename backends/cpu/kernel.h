// The interface of a CPU kernel, the tables of kernels by op name, and the kernels that exist once for all
// instruction sets.
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

// One call of a kernel: the operands in the op's order, the attributes and the plan. Operands may have any
// strides, unless the op restricts them. The plan is null for kernels without one.
struct Call {
  std::span<const Arg> in, out;
  const Attrs* attrs;
  const void* plan;
  bool batch_invariant;  // the summation order of a row must not depend on the number of rows
};

struct Scratch {
  std::size_t per_thread = 0, shared = 0;  // in bytes; each block is 64-byte aligned
};

struct Kernel {
  // Any number of threads of the worker's team call this function concurrently, and some may call it late
  // (see Worker). The function need not wait for the other threads at its end, because the executor waits.
  void (*run)(Worker&, const Call&);
  // Returns the scratch memory that the worker must provide. Null: none.
  Scratch (*scratch)(const Call&, int threads) = nullptr;
  // Describes how the kernel computes a call: algorithm, tiles. Writes at most `size` bytes including the
  // terminating 0.
  void (*choice)(const Call&, int threads, char* text, std::size_t size) = nullptr;
  // Returns the reason why the kernel does not support a call's attributes. Null if it does.
  const char* (*reason)(const Call&) = nullptr;
  // Whether the kernel must run on the thread that called Program::run, because it calls a user's function or
  // waits for other processes.
  bool on_caller = false;
};

struct KernelEntry {
  std::string_view op;
  const Kernel* kernel;
};

// An elementwise op on one block of values: out[i] = f(a[i], b[i], c[i]) for i < n, in the compute type
// (double, float or int64). Two blocks are either identical or do not overlap.
using BlockFn = void (*)(void* out, const void* a, const void* b, const void* c, std::int64_t n);

struct BlockEntry {
  std::string_view op;
  BlockFn f64, f32, i64;  // null if the op is not defined for the type
};

// Conversion between memory and blocks: n elements with stride `stride` in memory (0 repeats the first).
using LoadFn = void (*)(void* block, const void* memory, std::int64_t stride, std::int64_t n);
using StoreFn = void (*)(void* memory, const void* block, std::int64_t stride, std::int64_t n);

// All kernels that are compiled for one instruction set.
struct KernelSet {
  std::string_view isa;
  std::span<const KernelEntry> kernels;
  const std::span<const BlockEntry>* blocks;
  LoadFn (*load)(DType memory, DType block);  // null if there is no conversion
  StoreFn (*store)(DType block, DType memory);
};

// Returns the best set that this machine supports, or the set named by the environment variable TG_ISA
// (baseline, avx2, avx512). If TG_ISA is not set, avx512 uses AMX tiles for bf16 on processors that have
// them. Throws DeviceError for an unknown name, and for a set that this machine does not support.
const KernelSet& kernel_set();
// Returns all sets that this machine supports, the best one last.
std::span<const KernelSet* const> runnable_sets();

// The unit that multiplies bf16 matrices on this processor: f32 FMAs after conversion, the dot product of
// pairs (avx512_bf16), or tiles (AMX). All accumulate in f32. Pairs and tiles treat denormal operands and
// sums as zeros.
enum class Bf16Unit { f32, pairs, tiles };

// Returns the fastest unit of this machine. Tiles are used unless TG_ISA names an instruction set.
Bf16Unit bf16_unit();
// Whether this process may use AMX tiles for bf16. The first call requests permission from the system.
bool has_bf16_tiles();

// Registers a kernel of a user-defined op. It takes precedence over a built-in one.
void register_kernel(std::string op, Kernel kernel);
// Returns the kernel for an op, or null if there is none.
const Kernel* find_kernel(std::string_view op);

// Kernels of the collectives in ops/ranks.cpp. Ranks exchange data through shared memory. These kernels serve
// to test multi-rank programs without GPUs; they are not fast. The plan of a call is the Communicator, or
// null for a single rank. One thread does all the work. The kernels throw RankLost.
void all_reduce(Worker&, const Call&);
void all_gather(Worker&, const Call&);
void reduce_scatter(Worker&, const Call&);
void all_to_all(Worker&, const Call&);
void ppermute(Worker&, const Call&);
void local_shard(Worker&, const Call&);

// Returns the backend that runs the kernels, with a thread pool shared by the whole process.
Backend& backend();

}  // namespace tg::cpu
