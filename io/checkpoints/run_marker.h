// run.json in the output directory of a training run: the names of the files that its runs have written
// there.
#pragma once

#include <set>
#include <string>

namespace tg::io {

inline constexpr const char* run_marker_name = "run.json";

class RunMarker {
 public:
  // Reads the marker of the directory, if there is one. Throws Error if it is a link, FormatError if it is
  // not a marker.
  explicit RunMarker(std::string directory);

  bool has(const std::string& name) const { return names_.contains(name); }
  // Adds a name. It is on the disk when this returns, so that a killed run's files are marked. Throws Error.
  void add(const std::string& name);
  // Removes the marker and all names.
  void remove();

  std::string path() const { return directory_ + "/" + run_marker_name; }

 private:
  std::string directory_;
  std::set<std::string> names_;
};

}  // namespace tg::io
