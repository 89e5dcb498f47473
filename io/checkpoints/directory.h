// Directories of checkpoints: which ones are ours, and how they are removed.
#pragma once

#include <string>

namespace tg::io {

// Whether a manifest marks the directory as a checkpoint, complete or not. A link to one is not one.
bool is_checkpoint(const std::string& directory);

// Removes a checkpoint with everything in it, its manifest last, so that a directory that is half removed is
// still marked. Leaves alone what no manifest marks, unless nothing is in it. Does not throw: what is left
// does no harm.
void remove_checkpoint(const std::string& directory);

}  // namespace tg::io
