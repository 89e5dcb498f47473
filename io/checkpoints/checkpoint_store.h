// The checkpoints of one training run:
//
//   RUN/step-00000500/      the last one, and the best one if that is another
//   RUN/last, RUN/best      symbolic links to them
//   RUN/run.json            the names of the files in RUN, besides checkpoints, that runs have written
//
// A checkpoint is written under a temporary name, synced, renamed, and only then linked, by another rename.
// If the process is killed at any moment, or the disk is full, `last` is still intact: the new checkpoint or
// the previous one.
#pragma once

#include <memory>
#include <string>

#include <tilegrad/io/checkpoints/checkpoint.h>

namespace tg::io {

class RunMarker;

class CheckpointStore {
 public:
  // Creates the directory if needed, and removes the unfinished files of a killed run. Throws Error if it
  // cannot be created or another process is training in it. Throws Error and changes nothing if something in
  // it has a name that a run writes, and neither run.json nor the manifest of a checkpoint marks it, or if it
  // is a link to elsewhere.
  explicit CheckpointStore(const std::string& directory);
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  const std::string& directory() const { return directory_; }
  bool has_checkpoint() const;
  void clear();  // removes all checkpoints, except damaged ones and those with files that no run wrote

  // Throws Error if a checkpoint of one of the steps first … last could not be saved, because something that
  // no run wrote has its name or is in it.
  void require_free_steps(std::int64_t first, std::int64_t last) const;

  // For a file that the run writes next to its checkpoints. Throws Error if something in the directory has
  // this name and run.json does not mark it, or if it is not a regular file.
  void require_own(const std::string& name) const;
  // The same, and marks the name in run.json. Call it before the file is created or replaced.
  void claim(const std::string& name);

  // Links `last` to this checkpoint, and `best` too if best_step is step; removes earlier ones without a
  // link. Throws Error (full disk …); then both links are unchanged.
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
