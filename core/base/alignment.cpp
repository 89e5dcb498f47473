#include "core/base/alignment.h"

#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

std::size_t add_bytes(std::size_t a, std::size_t b, const char* what) {
  constexpr std::size_t most = std::size_t{1} << 60;
  if (a > most || b > most - a)
    throw OutOfMemory("[compile] " + std::string(what) + " would take " + std::to_string(a >> 30) + " + " +
                      std::to_string(b >> 30) + " GiB, more than any memory");
  return a + b;
}

}  // namespace tg
