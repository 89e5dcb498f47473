// The checkpoints of one training run:
//
//   RUN/step-00000500/      the last one, and the best one where it is another
//   RUN/last, RUN/best      symbolic links to them
//
// A checkpoint is written under a temporary name, put on the disk, renamed, and only then linked to, by a
// rename again. So a kill at any moment, or a full disk, leaves `last` whole: the new one or the one before.
#pragma once

#include <string>

#include <tilegrad/io/checkpoints/checkpoint.h>

namespace tg::io {

class CheckpointStore {
 public:
  // Makes the directory if it is missing, and removes what a killed run left unfinished. Throws Error when it
  // cannot be made or another process trains in it.
  explicit CheckpointStore(const std::string& directory);
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  const std::string& directory() const { return directory_; }
  bool has_checkpoint() const;
  void clear();  // removes all checkpoints

  // `last` is this one from now on, and so is `best` when best_step is step; earlier ones that neither names
  // are removed. Throws Error (full disk …), and both are what they were.
  void save(std::int64_t step, std::int64_t best_step, std::span<const CheckpointFile> files);

 private:
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string linked(const std::string& link) const;  // "step-00000500", empty if there is no such checkpoint
  void link(const std::string& link, const std::string& to) const;
  void adopt_copy(const std::string& link) const;
  void repair() const;
  void remove_old_steps() const;

  std::string directory_;
  int lock_ = -1;
};

}  // namespace tg::io
