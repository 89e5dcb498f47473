// tilegrad: everything a program that builds, differentiates and runs graphs needs.
#pragma once

#include "autograd/custom_op.h"
#include "autograd/gradients.h"
#include "core/compile.h"
#include "ops/ops.h"
