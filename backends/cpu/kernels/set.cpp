// The table of this instruction set's kernels.
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/list.h"

namespace tg::cpu::TG_ISA {

#define TG_DECLARE(name) extern const Kernel name##_kernel;
TG_CPU_KERNELS(TG_DECLARE)
#undef TG_DECLARE

#define TG_TEXT2(x) #x
#define TG_TEXT(x) TG_TEXT2(x)
#define TG_ROW(name) {#name, &name##_kernel},

static constexpr KernelEntry kernels[] = {TG_CPU_KERNELS(TG_ROW)};

// Constant-initialised: code that initialises it would run before main() on processors without the
// instruction set.
extern const KernelSet set;
constinit const KernelSet set{TG_TEXT(TG_ISA), kernels, &pointwise_blocks, &block_load, &block_store};

}  // namespace tg::cpu::TG_ISA
