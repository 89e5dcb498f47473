// StagedFile: a file that appears whole or not at all.
#pragma once

#include <string>

namespace tg::io {

// What is written into path(), a hidden file beside the one that is made, is renamed by publish(). What a
// killed process left there is overwritten by the next one.
class StagedFile {
 public:
  // Throws Error, "[who] …", if something has the name already.
  StagedFile(const std::string& file, std::string who);
  ~StagedFile();  // removes what was not published
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;

  const std::string& path() const { return staged_; }
  // The file must be on the disk. Makes it appear, durably. Throws Error; then nothing has appeared.
  void publish();

 private:
  std::string file_, staged_, parent_, who_;
};

}  // namespace tg::io
