#include "backends/cuda/jit/cache.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace tg::cuda {

std::filesystem::path cache_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache && *cache) {
    folder = cache;
  } else if (home && *home) {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  folder /= "tilegrad";
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? std::filesystem::path() : folder;
}

std::string text_of(const std::array<std::uint64_t, 2>& digest) {
  char s[40];
  std::snprintf(s, sizeof s, "%016" PRIx64 "%016" PRIx64, digest[0], digest[1]);
  return s;
}

}  // namespace tg::cuda
