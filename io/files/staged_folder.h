// StagedFolder: creates a folder that appears completely or not at all.
#pragma once

#include <string>

#include "core/base/file_write.h"

namespace tg::io {

// Throws Error, "[who] …", if the name exists or the folder cannot be created.
void require_new_folder(const std::string& folder, const std::string& who);

// Files are written to a hidden folder ".NAME.unfinished" next to the new one. publish() renames the hidden
// folder, and then removes the file ".unfinished" that marks it. If a folder with the hidden name exists
// without this mark, the constructor throws Error. If a process is killed, the next process that creates the
// same folder removes the remains. It never removes files of a process that is still writing.
class StagedFolder {
 public:
  // Throws Error, "[who] …", if the name exists, the parent folder is missing or not writable, or another
  // process is creating the same folder.
  StagedFolder(const std::string& folder, std::string who);
  ~StagedFolder();  // removes unpublished files
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  // Returns the path for a file with this plain name. Sync the file to disk before publish().
  std::string path(const std::string& name) const { return staged_ + "/" + name; }
  // Makes the folder appear and syncs it to disk. Throws Error if that fails; nothing has appeared then.
  void publish();
  // Publishes only the file with this plain name instead. It appears under the name of the folder.
  void publish_file(const std::string& name);

 private:
  void mark() const;
  std::string folder_, staged_, parent_, who_;
  FileDescriptor lock_{-1};
};

}  // namespace tg::io
