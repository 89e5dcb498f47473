// The token: a secret of a job's ranks on several hosts.
#pragma once

#include <string>

#include <tilegrad/parallel/world.h>

namespace tg::parallel {

// What TG_TOKEN is, or the file that TG_TOKEN_FILE names: at least 32 characters, without white space around
// them. Throws WorldError if there is none, if it is too short, and if others than the file's user may read
// it. `several` begins the line about a missing one.
std::string token_of(const Environment& get, const std::string& several);

// Throws WorldError if it is too short or too long; `name` begins the line.
void check_token(const std::string& token, const std::string& name);

}  // namespace tg::parallel
