// Every layer in small, for tools/gradcheck: a layer that is not here is not checked.
#pragma once

#include <tilegrad/autograd/gradcheck.h>

namespace tg {

std::vector<gradcheck::Case> layer_cases();

}  // namespace tg
