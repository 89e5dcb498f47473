// gradcheck over several ranks. It compares gradients of functions with collective ops (ops/ranks.h) with
// difference quotients. All ranks must make the same calls.
#pragma once

#include <memory>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/core/run/communicator.h>

namespace tg::gradcheck {

// `f` is called on each rank. The inputs may differ between ranks. If the results y are replicated, the loss
// is ⟨w, y⟩. If they vary between ranks, the loss is the sum of ⟨w_r, y_r⟩ over the ranks r. The `fill` of an
// input is not used.
struct RankCase {
  Case f;
  bool is_input_replicated = false, is_output_replicated = false;
  bool in_half_types = true;  // also check bf16 and f16; allows one stored intermediate result
};

// Returns cases for the ops of ops/ranks.h with this number of ranks, and a case that calls several of these
// ops.
std::vector<RankCase> rank_cases(int ranks);

// Checks a case on this rank's device, in options.dtypes:
// - f64: every element of the gradient is compared with a four-point difference. For this difference, the
//   element changes on one rank or, if the input is replicated, on all ranks. The host adds the losses of the
//   ranks, without an op. The bound is options.tol.
// - other dtypes: results and gradients are compared with f64 on the same numbers. Let u be the unit roundoff
//   of the tensor's dtype, w the unit roundoff of f32, and m the larger of 1 and the largest magnitude on any
//   rank. The bound is 2·u·m + 2·(steps + 1)·w·m.
//
// In each dtype, replicated values must be bitwise identical on all ranks. Returns one result per dtype. Each
// result covers all ranks, and all ranks return the same results. Throws RankLost, and errors that do not
// depend on the case.
std::vector<Result> check_ranks(const RankCase& c, const std::shared_ptr<Communicator>& ranks,
                                const Options& options);

}  // namespace tg::gradcheck
