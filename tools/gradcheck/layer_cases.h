// Small cases of every layer for tools/gradcheck: a layer that is not listed here is not checked.
#pragma once

#include <tilegrad/autograd/gradcheck.h>

namespace tg {

std::vector<gradcheck::Case> layer_cases();

}  // namespace tg
