// A program's memory plan as a picture: every buffer of the arena is a rectangle of its lifetime (x) and its
// addresses (y).
#pragma once

#include <string>

#include <tilegrad/core/run/program.h>
#include <tilegrad/io/plots/png_plot.h>

namespace tg {

// The step at which most bytes of the arena are alive, the first of several; 0 without buffers.
struct FullestStep {
  int step = 0;
  std::size_t bytes = 0;
};
FullestStep fullest_step(const Program& program);

// x: steps, counted from 0, each from its number to the next; y: MiB from the start of the arena. Coloured by
// the part of the model (tools/model_parts.h) whose step writes the buffer first. `name` begins the title.
plot::Plot plan_plot(const Program& program, const std::string& name);

}  // namespace tg
