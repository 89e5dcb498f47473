// The CPU backend.
#pragma once

#include "core/backend.h"

namespace tg::cpu {

Backend& backend();

}  // namespace tg::cpu
