#include "tools/gradcheck/rank_checks.h"

#include <cstdio>

#include "autograd/gradcheck_ranks.h"
#include "core/base/printable.h"
#include "tools/gradcheck/select.h"

namespace tg::gradcheck {

bool add_rank_checks(Report& report, const std::shared_ptr<parallel::Group>& group, const Options& options,
                     const std::vector<std::string>& names) {
  const std::shared_ptr<Communicator> ranks(group, &group->communicator());
  const std::vector<RankCase> cases = rank_cases(ranks->size());
  bool all_known = true;
  for (const std::string& name : names) {
    bool is_known = false;
    for (const RankCase& c : cases) is_known |= !select({c.f}, {name}).empty();
    if (!is_known && ranks->rank() == 0)
      std::fprintf(stderr, "gradcheck: no op in which ranks exchange data is named '%s'\n",
                   printable(name).c_str());
    all_known &= is_known;
  }
  if (!all_known) return false;
  for (const RankCase& c : cases) {
    if (select({c.f}, names).empty()) continue;
    if (std::vector<Result> results = check_ranks(c, ranks, options); !results.empty())
      report.add(c.f, std::move(results));
  }
  return true;
}

}  // namespace tg::gradcheck
