// Determines which files in the folder of a training run were written by runs: checkpoint directories by
// their manifests, other files by run.json.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace tg::io {

// ---- Checkpoint directories

// Whether a file of a checkpoint can have this name: UTF-8 without a folder, and not hidden.
bool is_plain_name(std::string_view name);

// Whether the path is a directory, and not a link to one.
bool is_directory_itself(const std::string& path);

// Whether a manifest marks the directory as a checkpoint, complete or not. A link to a checkpoint does not
// count.
bool is_checkpoint(const std::string& directory);

// Whether the path is a directory, not a link to one, and its manifest lists every file in it. If a process
// was killed while it wrote or removed the checkpoint, some files and even the manifest may be missing.
bool holds_only_own_files(const std::string& directory);

// Removes such a directory, and its manifest last, so that a partly removed directory is still marked. Keeps
// any other directory. Does not throw, because remaining files do no harm.
void remove_checkpoint(const std::string& directory);

// ---- run.json: the names of the files that runs have written to the output directory of a training run

inline constexpr const char* run_marker_name = "run.json";

// The names in run.json.
class RunMarker {
 public:
  // Reads run.json of the directory if it exists. Throws Error if it is a link, FormatError if it is invalid.
  explicit RunMarker(std::string directory);

  // Whether the file lists this name.
  bool has(const std::string& name) const { return names_.contains(name); }
  // Adds a name and syncs the file to disk, so that files of a killed run are marked. Throws Error if that
  // fails.
  void add(const std::string& name);
  // Removes the file and all names.
  void remove();

  // The path of the file.
  std::string path() const { return directory_ + "/" + run_marker_name; }

 private:
  std::string directory_;
  std::set<std::string> names_;
};

}  // namespace tg::io
