#include <tilegrad/io/checkpoints/checkpoint_store.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "core/os/file.h"
#include "core/run/saving.h"
#include "io/checkpoints/own_files.h"

namespace tg::io {
namespace {

namespace fs = std::filesystem;

constexpr const char *last_link = "last", *best_link = "best";
constexpr const char *removed = ".checkpoint-tmp-removed", *step_prefix = "step-",
                     *temporary = ".checkpoint-tmp";  // also .checkpoint-tmp-last and -best

std::string step_name(std::int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "%s%08lld", step_prefix, static_cast<long long>(step));
  return name;
}

void rename_to(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  check_file("checkpoint", "rename", from + " to " + to, error.value());
}

bool is_step(std::string_view name) {
  constexpr std::size_t digits = std::string_view(step_prefix).size();
  return name.size() >= digits + 8 && name.starts_with(step_prefix) &&
         name.find_first_not_of("0123456789", digits) == name.npos;
}

// Returns the names in the directory that have the form of a checkpoint's name.
std::vector<std::string> step_names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
    if (std::string name = it->path().filename().string(); is_step(name)) names.push_back(std::move(name));
  check_file("checkpoint", "list", directory, error.value());
  return names;
}

// Returns the checkpoints in the directory: its step-… directories that have a manifest.
std::vector<std::string> steps_in(const std::string& directory) {
  std::vector<std::string> names = step_names_in(directory);
  std::erase_if(names, [&](const std::string& name) { return !is_checkpoint(directory + "/" + name); });
  return names;
}

[[noreturn]] void refuse_foreign(const std::string& path, const std::string& why) {
  throw Error("[checkpoint] " + path + " is in the way: " + why + "; move it away");
}

constexpr const char* no_mark = "no run.json marks it as written by a run";

bool is_directory(const std::string& path) {
  std::error_code unknown;
  return fs::is_directory(path, unknown);
}

void remove_link(const std::string& path) {
  std::error_code ignored;
  if (fs::is_symlink(fs::symlink_status(path, ignored))) fs::remove(path, ignored);
}

}  // namespace

CheckpointStore::CheckpointStore(const std::string& directory) : directory_(directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  check_file("checkpoint", "make the directory", directory, error.value());
  os::Opened opened = os::open(directory, os::Open::folder);
  check_file("checkpoint", "open the directory", directory, opened.error);
  if (!os::try_lock(opened.file.fd)) throw Error("[checkpoint] another process is training in " + directory);
  lock_ = std::make_shared<FileDescriptor>(std::move(opened.file));
  marker_ = std::make_unique<RunMarker>(directory_);
  require_all_own();
  repair();
}

CheckpointStore::~CheckpointStore() = default;

std::string CheckpointStore::linked(const std::string& link) const {
  std::error_code error;
  const std::string to = fs::read_symlink(path(link), error).filename().string();
  return !error && is_directory(path(to)) ? to : "";
}

bool CheckpointStore::has_checkpoint() const {
  return !linked(last_link).empty();
}

// Throws Error if the name is neither a link to a checkpoint of a run nor a copy of a checkpoint.
void CheckpointStore::require_own_link(const std::string& link) const {
  if (!is_taken(path(link)) || (is_checkpoint(path(link)) && holds_only_own_files(path(link)))) return;
  std::error_code error;
  const std::string to = fs::read_symlink(path(link), error).string();
  if (error) refuse_foreign(path(link), "it is not a link to a checkpoint");
  if (!is_step(to))
    refuse_foreign(path(link), "it is a link to " + to + ", which is not a checkpoint in its folder");
  if (!marker_->has(link.substr(link.rfind('-') + 1))) refuse_foreign(path(link), no_mark);
}

void CheckpointStore::require_all_own() const {
  for (const std::string link : {last_link, best_link})
    require_own_link(link), require_own_link(temporary + ("-" + link));
  for (const std::string name : {temporary, removed})
    if (is_taken(path(name)) && !holds_only_own_files(path(name)))
      refuse_foreign(path(name),
                     "it has files that no manifest of a checkpoint lists, or that are not regular files");
}

void CheckpointStore::require_free_steps(std::int64_t first, std::int64_t last) const {
  const auto digits = std::string_view(step_prefix).size();
  for (const std::string& name : step_names_in(directory_)) {
    std::int64_t step = 0;
    const char* end = name.data() + name.size();
    if (std::from_chars(name.data() + digits, end, step).ec != std::errc() || step < first || step > last)
      continue;
    if (!is_checkpoint(path(name))) refuse_foreign(path(name), "no manifest marks it as a checkpoint");
    if (!holds_only_own_files(path(name)))
      refuse_foreign(path(name),
                     "it has files that its manifest does not list, or that are not regular files");
  }
}

void CheckpointStore::require_own(const std::string& name) const {
  if (!is_plain_name(name))
    throw Error("[checkpoint] got a file named " + json_excerpt(name) +
                ", expected a name without a folder that does not begin with a dot");
  if (is_replaceable(path(name), "checkpoint") && !marker_->has(name)) refuse_foreign(path(name), no_mark);
}

void CheckpointStore::claim(const std::string& name) {
  require_own(name);
  marker_->add(name);
}

void CheckpointStore::link(const std::string& link, const std::string& to) {
  marker_->add(link);
  const std::string fresh = path(temporary + std::string("-") + link);
  remove_link(fresh);
  std::error_code error;
  fs::create_symlink(to, fresh, error);
  check_file("checkpoint", "link", fresh, error.value());
  rename_to(fresh, path(link));
  sync_directory(directory_, "checkpoint");
}

// Tools that copy a run to another machine often replace a link with a copy of its target.
void CheckpointStore::adopt_copy(const std::string& link) {
  if (!is_directory_itself(path(link))) return;
  const std::string name = step_name(Checkpoint(path(link)).step());
  if (is_checkpoint(path(name))) {
    remove_checkpoint(path(link));
  } else {
    rename_to(path(link), path(name));
  }
  this->link(link, name);
}

// Repairs missing or outdated links, and removes checkpoint directories without a link. A killed process or a
// copying tool may have left them.
void CheckpointStore::repair() {
  for (const char* name : {temporary, removed}) remove_checkpoint(path(name));
  for (const char* name : {last_link, best_link}) remove_link(path(temporary + std::string("-") + name));
  adopt_copy(last_link);
  adopt_copy(best_link);
  if (!has_checkpoint()) {  // a process was killed between renaming the first checkpoint and linking it
    std::string newest;
    for (const std::string& name : steps_in(directory_)) newest = std::max(newest, name);
    if (newest.empty()) return;
    link(last_link, newest);
  }
  // `last` is linked before `best` and contains the step of the best checkpoint.
  try {
    const Checkpoint now(path(last_link));
    const std::string best = step_name(now.best_step());
    if (now.best_step() > 0 && linked(best_link) != best && is_directory(path(best))) link(best_link, best);
  } catch (const FormatError&) {
    return;  // the checkpoint is damaged: loading reports that, so nothing is removed here
  }
  remove_old_steps();
}

// Removes checkpoints without a link. Ignores failures, because remaining directories do no harm.
void CheckpointStore::remove_old_steps() const {
  const std::string keep[] = {linked(last_link), linked(best_link)};
  for (const std::string& name : steps_in(directory_))
    if (name != keep[0] && name != keep[1]) remove_step(name);
}

// Removes a checkpoint, unless someone has added files to it. The checkpoint first gets a temporary name. If
// the process is killed before it is removed, the next run removes the directory with that name.
void CheckpointStore::remove_step(const std::string& name) const {
  if (!holds_only_own_files(path(name))) return;
  std::error_code error;
  fs::rename(path(name), path(removed), error);
  remove_checkpoint(path(error ? name : removed));
}

void CheckpointStore::clear() {
  for (const char* name : {best_link, last_link}) remove_link(path(name));
  remove_old_steps();
}

void CheckpointStore::save(std::int64_t step, std::int64_t best_step, std::span<const CheckpointFile> files) {
  const SaveScope writes(SaveScope::Stage::writing);
  const std::string fresh = path(temporary), name = step_name(step);
  try {
    write_checkpoint(fresh, step, best_step, files);
    if (is_taken(path(name)) && !is_checkpoint(path(name)))
      refuse_foreign(path(name), "no manifest marks it as a checkpoint");
    rename_to(fresh, path(name));
    sync_directory(directory_, "checkpoint");
    link(last_link, name);
    if (best_step == step) link(best_link, name);
  } catch (...) {
    remove_checkpoint(fresh);
    throw;
  }
  remove_old_steps();
}

}  // namespace tg::io
