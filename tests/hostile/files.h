// What the calls of io/ draw beside the types of world.h.
#pragma once

#include "tests/hostile/world.h"

namespace tg::hostile {

// A path in the current directory, which is temporary (hostile.cpp), that may or may not hold something.
std::string path(World& w);

// One of the n numbers from `least` on, or any number.
std::int64_t count(World& w, std::uint64_t n, std::int64_t least = 0);

// Up to 39 token ids.
std::vector<std::int32_t> ids(World& w);

std::vector<Call> training_calls();  // train/; among file_calls()

}  // namespace tg::hostile
