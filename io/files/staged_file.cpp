#include "io/files/staged_file.h"

#include <filesystem>

#include <tilegrad/io/files/file.h>
#include "core/base/file_write.h"
#include "io/files/staged_folder.h"

namespace tg::io {

namespace fs = std::filesystem;

StagedFile::StagedFile(const std::string& file, std::string who) : file_(file), who_(std::move(who)) {
  require_new_path(file_, who_, "file");
  const fs::path parent = fs::path(file_).parent_path();
  parent_ = parent.empty() ? "." : parent.string();
  staged_ = (parent / ("." + fs::path(file_).filename().string() + ".unfinished")).string();
}

StagedFile::~StagedFile() {
  std::error_code ignored;
  if (!staged_.empty()) fs::remove(staged_, ignored);
}

void StagedFile::publish() {
  require_new_path(file_, who_, "file");
  std::error_code error;
  fs::rename(staged_, file_, error);
  if (error) fail_file(who_, "create", file_, error.value());
  staged_.clear();
  sync_directory(parent_, who_);
}

}  // namespace tg::io
