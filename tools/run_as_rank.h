// For tools that several ranks can run together: joining them, and how they end.
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

// The device of a rank for --backend: of several ranks on GPUs, each has the one of its number on its host.
inline std::string own_gpu(const std::string& backend, int ranks) {
  if (ranks == 1 || !backend.starts_with("cuda")) return backend;
  if (backend != "cuda")
    throw parallel::WorldError("[ranks] --backend " + backend + " names one GPU, but there are " +
                               std::to_string(ranks) + " ranks: expected cuda, of which each takes its own");
  // A launcher may show each rank its own GPU only.
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool is_alone = visible && *visible && !std::strchr(visible, ',');
  return "cuda:" + std::to_string(is_alone ? 0 : parallel::world().local_rank);
}

// run_tool of f(join). join() meets the other ranks, once the command line is read; what the first rank alone
// is to print is then lost on the others. An exception ends all ranks: the one that threw it with 1, the
// others, which are told why, with exit_rank_lost. `failure`: another code than 1.
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
    } catch (const UsageError&) {  // all ranks find it
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
