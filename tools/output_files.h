// Files that a tool writes and whose names are options: --json FILE, --plan PNG.
#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "tools/args.h"

namespace tg {

inline void declare_overwrite(Args& args, bool& overwrite) {
  args.flag("overwrite", "replace output files that exist", overwrite);
}

// Throws as io::replace_file.
inline void write_file(const std::string& path, std::string_view text, const char* tool) {
  io::replace_file(path, std::span(&text, 1), tool);
}

// Throws Error if a file is also an input. Empty names stand for no file.
inline void require_not_input(const char* tool, const std::string& path,
                              const std::vector<std::string>& inputs) {
  for (const std::string& in : inputs)
    if (std::error_code error; !in.empty() && std::filesystem::equivalent(in, path, error))
      throw Error("[" + std::string(tool) + "] " + path + " would replace the input file " + in +
                  ": expected another name");
}

// Throws Error if a file cannot be written: it exists, without --overwrite, it is a link or not a regular
// file, or it is an input. Call it before the work whose result is written. An empty name stands for no file.
inline void check_outputs(const char* tool, std::initializer_list<std::string> paths, bool overwrite,
                          const std::vector<std::string>& inputs = {}) {
  for (const std::string* path = paths.begin(); path != paths.end(); ++path) {
    if (path->empty()) continue;
    if (std::find(paths.begin(), path, *path) != path)
      throw Error("[" + std::string(tool) + "] two outputs are named " + *path +
                  ": expected different names");
    require_not_input(tool, *path, inputs);
    io::require_replaceable(*path, tool, overwrite ? io::Existing::replace : io::Existing::refuse);
  }
}

}  // namespace tg
