// compile: from a graph and what is wanted of it to a Program that runs many times.
#pragma once

#include <optional>

#include <tilegrad/core/run/program.h>

namespace tg {

// `target` becomes `value` at the end of every run; same shape and dtype.
struct Assign {
  Parameter target;
  Tensor value;
};

struct CompileOptions {
  std::vector<Assign> assign = {};
  std::optional<Device> device = {};  // left out: where the graph's parameters live, the CPU if it has none
  int threads = 0;                    // CPU: 0 takes TG_THREADS or what the machine has
  bool tf32 = false;  // CUDA: f32 products on tensor cores, operands rounded to 10 bits of fraction
  bool fuse = true;   // chains of pointwise ops in one pass over memory
  bool reuse = true;  // one arena; false gives every tensor memory of its own
  // Every run is done twice, planned with dead memory filled with NaN patterns and with a buffer per tensor,
  // and must give the same bits; throws Error naming the first tensor that differs. Ops in free order run in
  // order. For finding planner and kernel bugs.
  bool verify = false;
  // Chooses kernels and places everything, but takes no memory: memory(), steps() and text() say what the
  // program would be; run, feed and fetch throw Error.
  bool plan_only = false;
};

// Prunes what `fetch` and the assignments do not need, fuses, chooses kernels and plans memory. Only fetched
// tensors can be read after a run. Throws DeviceError, with the user's source line, for what the device
// cannot run.
Program compile(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options = {});

// Compiles, runs once and reads: for tests, snippets and a look at a value.
Array eval(const Tensor& t, const std::vector<Feed>& feeds = {}, const CompileOptions& options = {});
std::vector<Array> eval(const std::vector<Tensor>& ts, const std::vector<Feed>& feeds = {},
                        const CompileOptions& options = {});

}  // namespace tg
