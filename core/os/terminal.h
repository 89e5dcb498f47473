// Whether a stream is a terminal, and how wide it is.
#pragma once

#include <cstdio>

namespace tg::os {

bool is_terminal(std::FILE* stream);
int terminal_width(std::FILE* stream);  // in characters; 0: unknown

}  // namespace tg::os
