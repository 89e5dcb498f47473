// How ranks on the CPU exchange data: through memory that all of them see. It is there to test programs of
// several ranks without GPUs, not to be fast.
#pragma once

#include "backends/cpu/kernel.h"

namespace tg::cpu {

// Kernels of the ops of ops/ranks.cpp; a call's plan is the Communicator, null for a group of one. One thread
// does all the work. They throw RankLost.
void sum_ranks(Worker&, const Call&);
void gather_ranks(Worker&, const Call&);
void scatter_sum(Worker&, const Call&);
void exchange_ranks(Worker&, const Call&);
void shift_ranks(Worker&, const Call&);
void own_piece(Worker&, const Call&);

}  // namespace tg::cpu
