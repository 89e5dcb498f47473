// tilegrad: everything a program that builds, differentiates and runs graphs needs.
#pragma once

#include <tilegrad/autograd/custom_op.h>
#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/ops/ops.h>
