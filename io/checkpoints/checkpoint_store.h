// The checkpoints of one training run:
//
//    RUN/step-00000500/      the last checkpoint, and the best one if it is a different one
//    RUN/last, RUN/best      symbolic links to them
//    RUN/run.json            names of the other files that runs have written to RUN
//
// A checkpoint is written under a temporary name, synced to disk and renamed. Only then is the link replaced,
// by a second rename. If the process is killed at any moment or the disk is full, `last` still leads to an
// intact checkpoint: the new one or the previous one.
#pragma once

#include <memory>
#include <string>

#include <tilegrad/io/checkpoints/checkpoint.h>

namespace tg::io {

class RunMarker;

// Saves the checkpoints of a run in its directory, and locks the directory against other processes.
class CheckpointStore {
 public:
  // Creates the directory if needed, and removes unfinished files of a killed run. Throws Error if the
  // directory cannot be created or another process is training in it. Also throws Error, without changing
  // anything, in two cases:
  // - Something in the directory has a name that a run writes, but neither run.json nor a manifest marks it.
  // - Something with such a name is a symbolic link to a file elsewhere.
  explicit CheckpointStore(const std::string& directory);
  // Unlocks the directory.
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  // The run's directory.
  const std::string& directory() const { return directory_; }
  // Whether `last` leads to a checkpoint.
  bool has_checkpoint() const;
  // Removes all checkpoints. Keeps damaged checkpoints, and checkpoints to which other files were added.
  void clear();

  // Throws Error if the name of a checkpoint of the steps first … last is already used by something that no
  // run wrote. That checkpoint could not be saved.
  void require_free_steps(std::int64_t first, std::int64_t last) const;

  // Checks the name of a file that the run writes next to its checkpoints. Throws Error if a file with this
  // name exists but is not listed in run.json, or if it is not a regular file.
  void require_own(const std::string& name) const;
  // Does the same as require_own(), then adds the name to run.json. Call it before the file is created or
  // replaced.
  void claim(const std::string& name);

  // Saves a checkpoint and links `last` to it. If best_step equals step, also links `best` to it. Then
  // removes earlier checkpoints without a link. Throws Error if writing fails (full disk …); both links are
  // then unchanged.
  void save(std::int64_t step, std::int64_t best_step, std::span<const CheckpointFile> files);

 private:
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  std::string linked(const std::string& link) const;  // "step-00000500", empty if there is no such checkpoint
  void link(const std::string& link, const std::string& to);
  void adopt_copy(const std::string& link);
  void require_own_link(const std::string& link) const;
  void require_all_own() const;
  void repair();
  void remove_old_steps() const;
  void remove_step(const std::string& name) const;

  std::string directory_;
  std::shared_ptr<void> lock_;  // of the directory
  std::unique_ptr<RunMarker> marker_;
};

}  // namespace tg::io
