// Whether ranks have the programs that they should have: steps that exchange data wait for the same step of
// all others.
#pragma once

#include <span>

#include <tilegrad/core/run/communicator.h>
#include <tilegrad/core/run/step.h>

namespace tg {

// Throws Error for a step that is of more or fewer ranks than there are: one without a communicator, which is
// null. Unless the program is only planned, also compares the steps of all ranks, which then must all call
// this, by op, attributes, dtypes and layouts: throws Error that names the first that differs and the ranks.
void check_ranks(std::span<const Step> steps, Communicator* ranks, bool plan_only);

}  // namespace tg
