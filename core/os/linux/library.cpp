#include "core/os/library.h"

#include <dlfcn.h>

namespace tg::os {

void* load_library(const std::string& file, Symbols symbols, std::string* why) {
  void* library = dlopen(file.c_str(), RTLD_NOW | (symbols == Symbols::global ? RTLD_GLOBAL : RTLD_LOCAL));
  if (!library && why) *why = dlerror();
  return library;
}

void* find_symbol(void* library, const char* name) {
  return dlsym(library, name);
}

}  // namespace tg::os
