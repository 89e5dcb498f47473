// Measures the copy and matmul rates of a program's device by running programs in this process, on any
// backend.
#pragma once

#include <tilegrad/core/report/profile.h>

namespace tg {

// Measures the rates of a 256 MiB copy (less if memory is short) and of square matmuls with the program's
// device, threads and TF32 option. Matmuls are measured for the operand dtypes of the program's matmul and
// flash_attn steps. Blocks until the measurement is complete.
Ceilings measure_ceilings(const Program& program);
// Same with matmuls of the given dtypes.
Ceilings measure_ceilings(const Program& program, const std::vector<DType>& dtypes);

}  // namespace tg
