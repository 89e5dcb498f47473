// gradcheck --ranks: the checks of ops in which ranks exchange data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tilegrad/parallel/group.h>
#include "tools/gradcheck/report.h"

namespace tg::gradcheck {

// Adds those of the ops and samples with these names, or of all when there are none. All ranks of the group
// call it alike. False, with a line on stderr for each, if a name selects nothing.
bool add_rank_checks(Report& report, const std::shared_ptr<parallel::Group>& group, const Options& options,
                     const std::vector<std::string>& names);

}  // namespace tg::gradcheck
