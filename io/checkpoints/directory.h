// Directories of checkpoints: which ones are ours, and how they are removed.
#pragma once

#include <string>
#include <string_view>

namespace tg::io {

// Whether a file of a checkpoint can have this name: UTF-8 that leads nowhere else, and is not hidden.
bool is_plain_name(std::string_view name);

// Whether it is a directory and not a link to one.
bool is_directory_itself(const std::string& path);

// Whether a manifest marks the directory as a checkpoint, complete or not. A link to one is not one.
bool is_checkpoint(const std::string& directory);

// Whether it is a directory and not a link to one, and its manifest lists every file in it. If a killed
// process began to write or to remove the checkpoint, some files may be missing, and the manifest too.
bool holds_only_own_files(const std::string& directory);

// Removes such a directory, its manifest last, so that a directory that is half removed is still marked.
// Leaves any other directory unchanged. Does not throw: what is left does no harm.
void remove_checkpoint(const std::string& directory);

}  // namespace tg::io
