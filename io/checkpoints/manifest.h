// The content of a checkpoint's manifest.json: the step, and the size and checksum of each file.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace tg::io {

// A parsed manifest.
struct Manifest {
  // One file of the checkpoint.
  struct File {
    std::uint64_t bytes = 0;  // size of the file
    std::string xxh3_128;     // 32 hexadecimal digits
  };
  std::int64_t step = 0;       // number of training steps before the checkpoint
  std::int64_t best_step = 0;  // step of the best checkpoint so far; 0 before the first validation
  std::map<std::string, File> files = {};  // by name
  std::set<std::string> unfinished = {};   // names of the files of a checkpoint that is being written
};

// The manifest's file name.
inline constexpr const char* manifest_name = "manifest.json";
// The largest manifest in bytes. A longer file is not read as a manifest.
inline constexpr std::uint64_t max_manifest_bytes = 1 << 20;

// Returns the content of manifest.json.
std::string to_json(const Manifest& manifest);

// Whether `text` begins like one of our manifests, of any version. It may be incomplete or damaged.
bool is_manifest(std::string_view text);

// Returns the names of all files that a manifest lists, finished or not. If the manifest is invalid, returns
// the names before the first mistake.
std::set<std::string> names_in_manifest(std::string_view text);

// Parses a manifest. Throws FormatError with a message that begins with `where` if the manifest is invalid.
// Examples are a missing key, an unknown version, a file name that leads out of the directory, and a checksum
// that does not have 32 digits.
Manifest parse_manifest(std::string_view text, const std::string& where);

}  // namespace tg::io
