// compile: builds a Program, which can run many times, from a graph and the tensors to compute.
#pragma once

#include <optional>

#include <tilegrad/core/run/program.h>
#include <tilegrad/core/run/shared_arena.h>

namespace tg {

// An assignment at the end of every run. `target` and `value` have the same shape and dtype.
struct Assign {
  Parameter target;  // the parameter that is assigned
  Tensor value;      // its new value
};

// Options of compile().
struct CompileOptions {
  std::vector<Assign> assign = {};  // assignments at the end of every run
  // default: the device of the graph's parameters, or the CPU if there are none
  std::optional<Device> device = {};
  // CPU threads; 0: the number in the environment variable TG_THREADS, or one per processor if it is not set
  int threads = 0;
  bool tf32 = false;  // CUDA: f32 GEMMs on tensor cores, with operands rounded to TF32 (10 mantissa bits)
  // Makes each row of a result bitwise independent of all other rows and their number. The summation order of
  // a GEMM then depends on the row size, the dtypes and the layout of the right matrix, but not on the number
  // of rows. Norms, softmax, RoPE, embedding, pointwise ops, argmax, top_k, indexing and paged_attn are
  // always batch-invariant. flash_attn, sums over rows and other reductions are not covered. The guarantee
  // holds between programs with the same ops and different numbers of rows. GEMMs of many rows may be slower
  // (docs/benchmarks.md).
  bool batch_invariant = false;
  bool fuse = true;   // fuse pointwise ops into elementwise kernels
  bool reuse = true;  // plan one arena; false: separate memory for every tensor
  // Limit for memory().peak() in bytes; 0: no limit. If the program would exceed the limit, compile() first
  // searches for an order of the steps that needs less memory. If that does not suffice, the program
  // recomputes as few values as possible before their late uses (MemoryReport::recomputed). Cheap values,
  // such as outputs of norms, activations and casts, are chosen first, and GEMMs and attention last. Results
  // stay bitwise identical. If the limit is too small, throws OutOfMemory with the smallest possible peak.
  std::size_t memory_budget = 0;
  std::size_t memory_held = 0;              // bytes of memory_budget that other objects already use
  std::shared_ptr<SharedArena> arena = {};  // memory shared with other programs; default: separate memory
  // Connects the ranks that run this program together; null: one rank. compile() compares the programs of all
  // ranks and throws Error with the first step that differs.
  std::shared_ptr<Communicator> ranks = {};
  // For finding planner and kernel bugs. Every run executes two programs: one as planned, and one with a
  // separate buffer per tensor. Unused memory is filled with NaN patterns. If a tensor is not bitwise
  // identical in both, throws Error with the first such tensor. Ops that may sum in any order use a fixed
  // order.
  bool verify = false;
  // Chooses kernels and plans memory without allocating any. memory(), steps() and text() describe the
  // program; run(), feed() and fetch() throw Error.
  bool plan_only = false;
  // Compiles even if the program lacks an assignment that Graph::must_assign requires. Use it only to inspect
  // values.
  bool allow_unassigned = false;
};

// Compiles a program that computes `fetch` and the assignments, and nothing else. Only fetched tensors can be
// read after a run. The graph may grow afterwards, and the program keeps it alive. Throws:
// - Error for tensors of a different graph, and for a parameter that is assigned twice
// - ShapeError and DTypeError for an assignment that does not match its parameter
// - DeviceError with the source line if the device has no kernel for a step
// - OutOfMemory with the sizes
Program compile(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options = {});

// Compiles, runs once and fetches a tensor, for tests, examples and debugging. If the tensor does not depend
// on an input, a feed of that input is ignored.
Array eval(const Tensor& t, const std::vector<Feed>& feeds = {}, const CompileOptions& options = {});
// Same for several tensors, in one run.
std::vector<Array> eval(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds = {},
                        const CompileOptions& options = {});

}  // namespace tg
