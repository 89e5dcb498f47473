// What a checkpoint's manifest.json says: the step, and for each file its size and sum.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tg::io {

struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::string xxh3_128;  // 32 hexadecimal digits
  };
  std::int64_t step = 0;
  std::int64_t best_step = 0;  // of the best checkpoint so far; 0 when nothing was validated yet
  std::map<std::string, File> files = {};
};

inline constexpr const char* manifest_name = "manifest.json";

std::string to_json(const Manifest& manifest);

// Throws FormatError, beginning with `where`, for anything but a whole manifest: keys that are missing,
// another version, file names that lead out of the directory, sums that are not 32 digits.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tg::io
