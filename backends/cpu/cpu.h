// The CPU backend.
#pragma once

#include <tilegrad/core/run/backend.h>

namespace tg::cpu {

Backend& backend();

}  // namespace tg::cpu
