// Facts about the machine.
#pragma once

#include <string>

namespace tg::os {

std::string processor_name();  // for people; "unknown processor" if the system does not know

// Permits all threads of this process to use the processor's tile registers (AMX). False if the system
// refuses.
bool permit_tile_registers();

// Whether an executable file of that name is in a folder of PATH.
bool has_program(const std::string& name);

}  // namespace tg::os
