// Facts about the machine, and shared libraries that are loaded while the program runs. They stay loaded.
#pragma once

#include <string>

namespace tg::os {

std::string processor_name();  // for people; "unknown processor" if the system does not know

// Permits all threads of this process to use the processor's tile registers (AMX). False if the system
// refuses.
bool permit_tile_registers();

// Whether an executable file of that name is in a folder of PATH.
bool has_program(const std::string& name);

enum class Symbols { own, global };  // global: libraries that are loaded later find them

// Searches the system's library folders if `file` has no slash. If it cannot be loaded, returns null and sets
// `why`.
void* load_library(const std::string& file, Symbols symbols, std::string* why = nullptr);

// The address of a function or variable; null: the library has none of that name.
void* find_symbol(void* library, const char* name);

}  // namespace tg::os
