// The rates at which a program's device copies and multiplies, measured in this process by running programs,
// so that no backend is special.
#pragma once

#include <tilegrad/core/report/profile.h>

namespace tg {

// Copies 256 MiB (less if memory is short), and multiplies matrices of each dtype, with the program's device,
// threads and options. By default the dtypes are those of its matmul and flash_attn steps.
Ceilings measure_ceilings(const Program& program);
Ceilings measure_ceilings(const Program& program, const std::vector<DType>& dtypes);

}  // namespace tg
