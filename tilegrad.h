// The whole library. A user includes <tilegrad/tilegrad.h> and links tilegrad::tilegrad.
#pragma once

#include "core/dtype.h"
#include "core/error.h"
