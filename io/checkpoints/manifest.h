// The content of a checkpoint's manifest.json: the step, and the size and checksum of each file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace tg::io {

struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::string xxh3_128;  // 32 hexadecimal digits
  };
  std::int64_t step = 0;
  std::int64_t best_step = 0;  // of the best checkpoint so far; 0 before the first validation
  std::map<std::string, File> files = {};
  std::set<std::string> unfinished = {};  // names of the files of a checkpoint that is being written
};

inline constexpr const char* manifest_name = "manifest.json";
inline constexpr std::uint64_t max_manifest_bytes = 1 << 20;  // a longer file is none, and is not read

std::string to_json(const Manifest& manifest);

// Whether a text names our format: a manifest of whatever version, complete, damaged or not.
bool is_manifest(std::string_view text);

// The names of the files that a manifest lists, finished or not; of an invalid one, those before the mistake.
std::set<std::string> names_in_manifest(std::string_view text);

// Throws FormatError, beginning with `where`, for an invalid manifest: missing keys, another version, file
// names that lead out of the directory, checksums that are not 32 digits.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tg::io
