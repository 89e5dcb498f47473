// The ops in which ranks exchange data, which no instruction set makes faster (backends/cpu/ranks.h).
#include "backends/cpu/ranks.h"
#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

extern const Kernel sum_ranks_kernel{.run = &cpu::sum_ranks, .on_caller = true},
    gather_ranks_kernel{.run = &cpu::gather_ranks, .on_caller = true},
    scatter_sum_kernel{.run = &cpu::scatter_sum, .on_caller = true},
    exchange_ranks_kernel{.run = &cpu::exchange_ranks, .on_caller = true},
    shift_ranks_kernel{.run = &cpu::shift_ranks, .on_caller = true},
    own_piece_kernel{.run = &cpu::own_piece, .on_caller = true};

}  // namespace tg::cpu::TG_ISA
