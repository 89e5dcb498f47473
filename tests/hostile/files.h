// Types drawn by the calls of io/, in addition to world.h.
#pragma once

#include "tests/hostile/world.h"

namespace tg::hostile {

// A path in the current directory, which is temporary (hostile.cpp). It may exist or not.
std::string path(World& w);

// One of n numbers starting with `least`, or any number.
std::int64_t count(World& w, std::uint64_t n, std::int64_t least = 0);

// Draws up to 39 token ids.
std::vector<std::int32_t> ids(World& w);

std::vector<Call> training_calls();  // train/; among file_calls()

}  // namespace tg::hostile
