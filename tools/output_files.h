// Checks and writes the output files of a tool. Their names are options, such as --json FILE and --plot
// FILE.png.
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

// Writes an output file. Throws the errors of io::replace_file.
inline void write_file(const std::string& path, std::string_view text, const char* tool) {
  io::replace_file(path, std::span(&text, 1), tool);
}

// Throws Error if the output file is also an input file. Empty names are ignored.
inline void require_not_input(const char* tool, const std::string& path,
                              const std::vector<std::string>& inputs) {
  for (const std::string& in : inputs)
    if (std::error_code error; !in.empty() && std::filesystem::equivalent(in, path, error))
      throw Error("[" + std::string(tool) + "] " + path + " would replace the input file " + in +
                  ": expected another name");
}

// Throws Error if an output file cannot be written. Reasons are that it exists and --overwrite is not set,
// that it is not a regular file, or that it is also an input. Must be called before the work starts. Empty
// names are ignored.
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
