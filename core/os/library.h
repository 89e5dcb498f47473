// Shared libraries that are loaded while the program runs. They stay loaded.
#pragma once

#include <string>

namespace tg::os {

enum class Symbols { own, global };  // global: libraries that are loaded later find them

// Searches the system's library folders if `file` has no slash. If it cannot be loaded, returns null and sets
// `why`.
void* load_library(const std::string& file, Symbols symbols, std::string* why = nullptr);

// The address of a function or variable; null: the library has none of that name.
void* find_symbol(void* library, const char* name);

}  // namespace tg::os
