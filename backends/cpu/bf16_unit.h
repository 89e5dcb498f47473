// The unit that multiplies bf16 matrices on this processor.
#pragma once

namespace tg::cpu {

// All accumulate in f32: f32 multiply-adds after conversion, the dot product of pairs (avx512_bf16), or
// products of tiles (AMX). Pairs and tiles treat denormal operands and sums as zeros.
enum class Bf16Unit { f32, pairs, tiles };

// The fastest one here. Tiles are used unless TG_ISA names an instruction set.
Bf16Unit bf16_unit();
// Whether this process may use AMX tiles for bf16. The first call requests permission from the system.
bool has_bf16_tiles();

}  // namespace tg::cpu
