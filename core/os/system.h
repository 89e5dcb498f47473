// Information about the machine, and shared libraries that are loaded at run time and stay loaded.
#pragma once

#include <string>

namespace tg::os {

std::string processor_name();  // for display; "unknown processor" if the system does not know

// Permits all threads of this process to use the processor's tile registers (AMX). Returns false if the
// system refuses.
bool permit_tile_registers();

// Whether an executable file of that name is in a folder of PATH.
bool has_program(const std::string& name);

enum class Symbols { own, global };  // global: later libraries can use its symbols

// Searches the system's library folders if `file` has no slash. If it cannot be loaded, returns null and sets
// `why`.
void* load_library(const std::string& file, Symbols symbols, std::string* why = nullptr);

// The address of a function or variable; null if the library does not have it.
void* find_symbol(void* library, const char* name);

}  // namespace tg::os
