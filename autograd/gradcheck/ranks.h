// gradcheck over several ranks: gradients of functions with collective ops (ops/ranks.h), compared with
// differences. All ranks must make the same calls.
#pragma once

#include <memory>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/core/run/communicator.h>

namespace tg::gradcheck {

// `f` is called on each rank with different or equal inputs. If its results are replicated, the loss is ⟨w,
// y⟩. If they vary between ranks, the loss is Σ over ranks of ⟨w_r, y_r⟩. The inputs' `fill` is not used.
struct RankCase {
  Case f;
  bool is_input_replicated = false, is_output_replicated = false;
  bool in_half_types = true;  // also check in bf16 and f16: at most one intermediate result is stored
};

// Cases for the ops of ops/ranks.h with this number of ranks, and for a function that calls several of these
// ops.
std::vector<RankCase> rank_cases(int ranks);

// Checks a case on this rank's device, in options.dtypes:
// - f64: every element of the gradient is compared with four-point differences. The element changes on one
//   rank or, if the input is replicated, on all ranks. The host, not an op, adds the ranks' losses. The bound
//   is options.tol.
// - other dtypes: results and gradients are compared with f64 on the same numbers. Let u be the unit roundoff
//   of the tensor's dtype, w the unit roundoff of f32, and m the larger of 1 and the largest magnitude on any
//   rank. The bound is 2·u·m + 2·(steps + 1)·w·m.
//
// In each dtype, replicated values are bitwise identical on all ranks. Returns one result per dtype. It
// covers all ranks and is the same on all of them. Throws RankLost, and errors that do not depend on the
// case.
std::vector<Result> check_ranks(const RankCase& c, const std::shared_ptr<Communicator>& ranks,
                                const Options& options);

}  // namespace tg::gradcheck
