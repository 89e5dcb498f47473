// The error of a backend that cannot run a step.
#pragma once

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/step.h>

namespace tg {

// "[h.3.attn/flash_attn] WHY; got bf16 [1, 2, 5, 8] with causal=true (train.cpp:41)"
inline DeviceError refusal(const Step& s, const std::string& why) {
  std::string got;
  for (const Arg& a : s.in)
    got += (got.empty() ? "; got " : ", ") + std::string(name_of(a.dtype)) + " " + a.layout.shape.text();
  const std::string settings = s.attrs.non_default_text();
  if (!settings.empty()) got += (got.empty() ? "; got " : " with ") + settings;
  return DeviceError("[" + s.name + "] " + why + got + " " + at_line(s.where));
}

}  // namespace tg
