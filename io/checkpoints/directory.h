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

// Removes a checkpoint with everything in it, its manifest last, so that a directory that is half removed is
// still marked. Leaves alone what no manifest marks, unless nothing is in it. Does not throw: what is left
// does no harm.
void remove_checkpoint(const std::string& directory);

}  // namespace tg::io
