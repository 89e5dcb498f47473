// Which files in the folder of a training run are its own: directories of checkpoints by their manifests,
// other files by run.json.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace tg::io {

// ---- Directories of checkpoints: which ones are ours, and how they are removed

// Whether a file of a checkpoint can have this name: UTF-8 that leads nowhere else, and is not hidden.
bool is_plain_name(std::string_view name);

// Whether it is a directory and not a link to one.
bool is_directory_itself(const std::string& path);

// Whether a manifest marks the directory as a checkpoint, complete or not. A link to one is not one.
bool is_checkpoint(const std::string& directory);

// Whether it is a directory and not a link to one, and its manifest lists every file in it. If a killed
// process began to write or to remove the checkpoint, some files may be missing, and the manifest too.
bool holds_only_own_files(const std::string& directory);

// Removes such a directory, its manifest last, so that a directory that is half removed is still marked.
// Leaves any other directory unchanged. Does not throw: what is left does no harm.
void remove_checkpoint(const std::string& directory);

// ---- run.json in the output directory of a training run: the names of the files that its runs have written
// there

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
