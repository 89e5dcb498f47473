// gradcheck over several ranks: gradients of functions in which ranks exchange data (ops/ranks.h), against
// differences. All ranks call it alike.
#pragma once

#include <memory>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/core/run/communicator.h>

namespace tg::gradcheck {

// f is called on each rank with inputs of its own, or the same ones. Its results are replicated, the loss
// being ⟨w, y⟩, or each rank's own, the loss being Σ over ranks of ⟨w_r, y_r⟩. The inputs' `fill` is not
// read.
struct RankCase {
  Case f;
  bool is_input_replicated = false, is_output_replicated = false;
  bool in_half_types =
      true;  // also checked in bf16 and f16: at most one result of these is stored on the way
};

// The ops of ops/ranks.h over so many ranks, and a function that calls several.
std::vector<RankCase> rank_cases(int ranks);

// On this rank's device, in options.dtypes:
//   f64   every element of the gradient against four-point differences, in which this element moves on one
//         rank, or, of an input that is replicated, on all. The ranks' losses are added by the host, not by
//         an op. The bound is options.tol.
//   others  results and gradients against f64 on the same numbers. With the unit roundoffs u of the tensor's
//         dtype and w of f32, and m the larger of 1 and the largest magnitude on any rank, the bound is
//         2·u·m + 2·(steps + 1)·w·m.
// In each, what is replicated has the same bits on all ranks. One result per dtype, of all ranks together:
// the same on all of them. Throws RankLost, and errors that do not depend on the case.
std::vector<Result> check_ranks(const RankCase& c, const std::shared_ptr<Communicator>& ranks,
                                const Options& options);

}  // namespace tg::gradcheck
