// Files that a tool writes and whose names are options: --json FILE, --plan PNG.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include "tools/args.h"

namespace tg {

inline void declare_overwrite(Args& args, bool& overwrite) {
  args.flag("overwrite", "replace output files that exist", overwrite);
}

// Throws Error if a file cannot be written: it exists, without --overwrite, or it is a link or not a regular
// file. Call it before the work whose result is written. An empty name stands for no file.
inline void check_outputs(const char* tool, std::initializer_list<std::string> paths, bool overwrite) {
  for (const std::string* path = paths.begin(); path != paths.end(); ++path) {
    if (path->empty()) continue;
    if (std::find(paths.begin(), path, *path) != path)
      throw Error("[" + std::string(tool) + "] two outputs are named " + *path +
                  ": expected different names");
    io::require_replaceable(*path, tool, overwrite ? io::Existing::replace : io::Existing::refuse);
  }
}

}  // namespace tg
