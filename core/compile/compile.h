// compile: from a graph and the tensors to compute to a Program that runs many times.
#pragma once

#include <optional>

#include <tilegrad/core/run/program.h>
#include <tilegrad/core/run/shared_arena.h>

namespace tg {

// `target` becomes `value` at the end of every run; both have the same shape and dtype.
struct Assign {
  Parameter target;
  Tensor value;
};

struct CompileOptions {
  std::vector<Assign> assign = {};
  std::optional<Device> device = {};  // default: where the graph's parameters live, the CPU if it has none
  int threads = 0;                    // CPU: 0 means TG_THREADS or, without it, all of the machine's
  bool tf32 = false;  // CUDA: f32 products on tensor cores, operands rounded to 10 bits of fraction
  // A row of a result has the same bits alone as next to any other rows, and however many there are: matrix
  // products choose how to add up by the sizes of a row, the dtypes and how the right matrix lies, not by the
  // number of rows. Norms, softmax, rope, embedding, pointwise ops and their chains, argmax, top_k and
  // indexing work row by row in any case, and so does paged_attn. Not covered are flash_attn, sums over rows
  // and other reductions. Rows are those of equal programs: the same ops on more or fewer rows. Products of
  // many rows may take longer (docs/benchmarks.md).
  bool batch_invariant = false;
  bool fuse = true;   // chains of pointwise ops in one pass over memory
  bool reuse = true;  // one arena; false gives every tensor memory of its own
  // Bytes that memory().peak() may have; 0: no limit. Where the program would need more, its steps run in
  // another order, if one that needs less is found. If that is not enough, values are computed again before
  // their late uses instead of being kept, as few as it takes (MemoryReport::recomputed): cheap ones (outputs
  // of norms, activations, casts), and where these are not enough products and attention. The bits stay the
  // same. Throws OutOfMemory with the least that it can reach.
  std::size_t memory_budget = 0;
  std::size_t memory_held = 0;              // bytes of memory_budget that other objects already use
  std::shared_ptr<SharedArena> arena = {};  // memory that is shared with other programs; default: its own
  // What the ranks that run this program together have in common; null: there is one rank. compile() compares
  // the programs of all ranks and throws Error that names the first step that differs.
  std::shared_ptr<Communicator> ranks = {};
  // Every run is done twice, once as planned and once with a buffer per tensor, with unused memory filled
  // with NaN patterns, and must give the same bits; throws Error naming the first tensor that differs. Ops
  // that may add in any order add in a fixed one. For finding planner and kernel bugs.
  bool verify = false;
  // Chooses kernels and plans memory without allocating any: memory(), steps() and text() describe the
  // program; run, feed and fetch throw Error.
  bool plan_only = false;
  // Compiles even if an update that Graph::must_assign names is left out. For looking at values, not for use.
  bool allow_unassigned = false;
};

// A program that computes `fetch` and the assignments and nothing else. Only fetched tensors can be read
// after a run. Throws Error for tensors of another graph and for a parameter that is assigned twice,
// ShapeError and DTypeError for an assignment that its parameter cannot hold, DeviceError with the step's
// source line if the device has no kernel for it, OutOfMemory with the sizes. The graph may grow afterwards;
// the program keeps it alive.
Program compile(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options = {});

// Compiles, runs once and fetches: for tests, examples and debugging. Feeds of inputs that the tensors do not
// depend on are ignored.
Array eval(const Tensor& t, const std::vector<Feed>& feeds = {}, const CompileOptions& options = {});
std::vector<Array> eval(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds = {},
                        const CompileOptions& options = {});

}  // namespace tg
