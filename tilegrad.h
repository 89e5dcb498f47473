// The umbrella header: includes everything that a program needs to build, differentiate, train, save, load
// and run models. These parts have separate headers: gradcheck (autograd/gradcheck/gradcheck.h), tokenizers
// and data (io/text/, train/batches.h), plots (io/plots/), profiles (core/report/) and multi-process runs
// (parallel/group.h).
#pragma once

#include <tilegrad/autograd/custom_op.h>
#include <tilegrad/autograd/gradients.h>
#include <tilegrad/core/compile/compile.h>
#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/io/checkpoints/model_file.h>
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/ops/linear_cross_entropy.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/ops/ranks.h>
#include <tilegrad/ops/ring_attention.h>
#include <tilegrad/train/trainer.h>
#include <tilegrad/train/training.h>
#include <tilegrad/version.h>
