// Determines which files in the folder of a training run were written by runs. Manifests mark checkpoint
// directories, and run.json lists the other files.
#pragma once

#include <set>
#include <string>
#include <string_view>

namespace tg::io {

// ---- Checkpoint directories

// Whether a file of a checkpoint can have this name: UTF-8 without a folder, and not hidden.
bool is_plain_name(std::string_view name);

// Whether the path is a directory. A link to a directory does not count.
bool is_directory_itself(const std::string& path);

// Whether a manifest marks the directory as a checkpoint, which may be incomplete. A link to a checkpoint
// does not count.
bool is_checkpoint(const std::string& directory);

// Whether the path is a directory (not a link) and its manifest lists every file in it. If a process was
// killed while it wrote or removed the checkpoint, some files and even the manifest may be missing.
bool holds_only_own_files(const std::string& directory);

// Removes a directory if holds_only_own_files() is true for it, and keeps it otherwise. The manifest is
// removed last, so that a partly removed directory is still marked. Does not throw, because remaining files
// do no harm.
void remove_checkpoint(const std::string& directory);

// ---- run.json: the names of the files that runs have written to their output directory

inline constexpr const char* run_marker_name = "run.json";

// The set of names in run.json.
class RunMarker {
 public:
  // Reads run.json in the directory if it exists. Throws Error if the file is a link, and FormatError if it
  // is invalid.
  explicit RunMarker(std::string directory);

  // Whether the file lists this name.
  bool has(const std::string& name) const { return names_.contains(name); }
  // Adds a name and syncs run.json to disk, so that files of a killed run are listed. Throws Error if that
  // fails.
  void add(const std::string& name);
  // Removes run.json and all names.
  void remove();

  std::string path() const { return directory_ + "/" + run_marker_name; }

 private:
  std::string directory_;
  std::set<std::string> names_;
};

}  // namespace tg::io
