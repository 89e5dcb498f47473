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

std::string bytes_text(std::size_t bytes) {
  const int shift = bytes < std::size_t{10} << 20 ? 10 : 20;
  return std::to_string((bytes + (std::size_t{1} << shift) - 1) >> shift) + (shift == 10 ? " KiB" : " MiB");
}

}  // namespace tg
