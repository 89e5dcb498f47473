// StagedFolder: a folder that appears whole or not at all.
#pragma once

#include <string>

#include "core/base/file_write.h"

namespace tg::io {

// Throws Error, "[who] …", if something has that name, or none can be made of it.
void require_new_folder(const std::string& folder, const std::string& who);

// Files are written into a hidden folder beside the one that is made, ".NAME.unfinished", which publish()
// renames. Its file ".unfinished" marks it, until then: a folder of that name without the mark is an Error.
// What a killed process left there is removed by the next one that makes the same folder; a process that
// still writes there is not disturbed.
class StagedFolder {
 public:
  // Throws Error, "[who] …", if something has the name already, if the folder around it is missing or cannot
  // be written, or if another process is making the same folder.
  StagedFolder(const std::string& folder, std::string who);
  ~StagedFolder();  // removes what was not published
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  // Where to write the file of that plain name. It must be on the disk before publish().
  std::string path(const std::string& name) const { return staged_ + "/" + name; }
  // Makes the folder appear, durably. Throws Error; then nothing has appeared.
  void publish();
  // The same of the one file of that plain name, which takes the folder's place and name.
  void publish_file(const std::string& name);

 private:
  void mark() const;
  std::string folder_, staged_, parent_, who_;
  FileDescriptor lock_{-1};
};

}  // namespace tg::io
