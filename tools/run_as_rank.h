// For tools that several ranks can run together: joining them, and how they end.
#pragma once

#include <tilegrad/parallel/group.h>
#include "tools/run_tool.h"

namespace tg {

inline void wait_for_all(Communicator& ranks) {
  const std::byte nothing{};
  ranks.share({&nothing, 1}, [](auto) {});
}

// run_tool of f(join). join() meets the other ranks, once the command line is read; what the first rank alone
// is to print is then lost on the others. An exception ends all ranks: the one that threw it with 1, the
// others, which are told why, with exit_rank_lost.
template <class F>
int run_as_rank(const char* tool, F&& f) {
  std::shared_ptr<parallel::Group> group;
  return run_tool(tool, [&]() -> int {
    try {
      return f([&] {
        group = parallel::join(parallel::world(), {.end_after = std::chrono::seconds(8)});
        if (group->communicator().rank() > 0 && !std::freopen("/dev/null", "w", stdout))
          throw Error("[ranks] /dev/null cannot be opened");
        return group;
      });
    } catch (const std::exception& e) {
      if (group) group->fail(e.what());
      const int code = parallel::exit_code_of(e);
      if (code == 1) throw;
      report_failure(tool, e.what());
      return code;
    }
  });
}

}  // namespace tg
