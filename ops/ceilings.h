// What a program's device reaches at copying and at multiplying, measured in this process, through programs,
// so that no backend is special.
#pragma once

#include <tilegrad/core/report/profile.h>

namespace tg {

// Copies 256 MiB (less where memory is short), and multiplies matrices of each dtype, with the program's
// device, threads and options. Left out, the dtypes are those of its matmul and flash_attn steps.
Ceilings measure_ceilings(const Program& program);
Ceilings measure_ceilings(const Program& program, const std::vector<DType>& dtypes);

}  // namespace tg
