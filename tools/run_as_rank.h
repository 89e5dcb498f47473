// Connects the ranks and returns exit codes, for tools that several ranks can run together.
#pragma once

#include <cstdlib>
#include <cstring>

#include <tilegrad/parallel/group.h>
#include <tilegrad/parallel/world.h>
#include "core/run/ranks.h"
#include "tools/run_tool.h"

namespace tg {

inline void wait_for_all(Communicator& ranks) {
  gather_one(ranks, std::byte{});
}

// Returns the device of this rank for --backend. If several ranks use GPUs, each rank uses the GPU with its
// local rank as index.
inline std::string own_gpu(const std::string& backend, int ranks) {
  if (ranks == 1 || !backend.starts_with("cuda")) return backend;
  if (backend != "cuda")
    throw parallel::WorldError("[ranks] --backend " + backend + " names one GPU, but there are " +
                               std::to_string(ranks) +
                               " ranks: expected cuda, which gives each rank its own GPU");
  // A launcher may make only one GPU visible to each rank.
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool is_alone = visible && *visible && !std::strchr(visible, ',');
  return "cuda:" + std::to_string(is_alone ? 0 : parallel::world().local_rank);
}

// Calls run_tool with f(join). f calls join() once the command line is parsed. join() connects the ranks.
// After that, only rank 0 prints to standard output. If f throws, all ranks end. This rank exits with
// `failure` (default 1). The other ranks report its error and exit with exit_rank_lost.
template <class F>
int run_as_rank(const char* tool, F&& f, int failure = 1) {
  std::shared_ptr<parallel::Group> group;
  const auto joined = [&]() -> int {
    try {
      return f([&] {
        group = parallel::join(parallel::world(),
                               {.end_after = std::chrono::seconds(5),
                                .report = [&](const std::string& line) { report_failure(tool, line); }});
        if (group->communicator().rank() > 0 && !std::freopen("/dev/null", "w", stdout))
          throw Error("[ranks] /dev/null cannot be opened");
        return group;
      });
    } catch (const UsageError&) {  // every rank finds and reports a usage error by itself
      throw;
    } catch (const std::exception& e) {
      if (group) group->fail(e.what());
      const int code = parallel::exit_code_of(e);
      if (code == 1) throw;
      report_failure(tool, e.what());
      return code;
    }
  };
  return run_tool(tool, joined, failure);
}

}  // namespace tg
