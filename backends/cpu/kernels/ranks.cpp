// The ops in which ranks exchange data, which no instruction set makes faster (backends/cpu/ranks.h).
#include "backends/cpu/ranks.h"
#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

extern const Kernel sum_ranks_kernel{&cpu::sum_ranks}, gather_ranks_kernel{&cpu::gather_ranks},
    scatter_sum_kernel{&cpu::scatter_sum}, exchange_ranks_kernel{&cpu::exchange_ranks},
    shift_ranks_kernel{&cpu::shift_ranks}, own_piece_kernel{&cpu::own_piece};

}  // namespace tg::cpu::TG_ISA
