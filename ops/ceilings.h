// Measures the copy rate and the matmul rates of a program's device. The measurement runs programs in this
// process, on any backend.
#pragma once

#include <tilegrad/core/report/profile.h>

namespace tg {

// Measures the rates of a copy and of square matmuls with the program's device, threads and TF32 option. The
// copy has 256 MiB, or less if memory is short. Matmuls are measured for the operand dtypes of the program's
// matmul and flash_attn steps. Blocks until the measurement is complete.
Ceilings measure_ceilings(const Program& program);
// Same, but measures matmuls of the given dtypes.
Ceilings measure_ceilings(const Program& program, const std::vector<DType>& dtypes);

}  // namespace tg
