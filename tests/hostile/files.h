// Defines how the calls of io/ draw arguments of additional types. world.h defines the common types.
#pragma once

#include "tests/hostile/world.h"

namespace tg::hostile {

// Returns a path in the current directory, which is temporary (hostile.cpp). The path may exist or not.
std::string path(World& w);

// Returns a number in least … least + n − 1, or any number.
std::int64_t count(World& w, std::uint64_t n, std::int64_t least = 0);

// Draws up to 39 token ids.
std::vector<std::int32_t> ids(World& w);

std::vector<Call> training_calls();  // calls of train/, part of file_calls()

}  // namespace tg::hostile
