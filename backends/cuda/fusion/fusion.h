// Rules for steps next to each other that one kernel computes.
#pragma once

#include <span>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/core/run/step.h>
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// The steps of a program that have no plan yet, and how to plan them.
struct Upcoming {
  std::span<const Step> steps;
  const PrepareOptions& options;
  const Gpu& gpu;
  const WrittenMemory& written;

  Call call(std::size_t i) const {
    const Step& s = steps[i];
    return {s.in, s.out, &s.attrs, gpu, options.tf32, options.in_order, options.rows_alone, &written};
  }
  // Whether the step exists, and the relation holds between it and the step before it.
  template <class Related>
  bool is_next(Related related, std::size_t i) const {
    return i < steps.size() && related(steps[i - 1], steps[i]);
  }
};

// The first `count` upcoming steps, which the kernel of step `made_by` computes. 0: the rule does not match.
struct FusionMatch {
  std::size_t count = 0, made_by = 0;
};

// A rule's plan launches the kernel. Null: its kernel cannot compute these steps.
struct FusionRule {
  const char* name;
  FusionMatch (*match)(const Upcoming&);
  PlanPtr (*plan)(const Upcoming&, const FusionMatch&);
};

struct Fusion {
  FusionMatch steps;
  PlanPtr plan;
};

// The steps and the plan of the first rule that matches and has a plan, in the order of the list in
// fusion.cpp. If there is none, `steps` is the first step and `plan` is null.
Fusion fusion_of(const Upcoming& next);

}  // namespace tg::cuda
