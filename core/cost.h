// What a step costs by its op's own account.
#pragma once

#include "core/step.h"

namespace tg {

// Nothing for an op that has no account: bytes of operands are not in it either way.
inline Cost cost_of(const Step& s) {
  if (!s.op->cost) return {};
  std::vector<Operand> in, out;
  for (const Arg& a : s.in) in.push_back({a.dtype, a.layout});
  for (const Arg& a : s.out) out.push_back({a.dtype, a.layout});
  return s.op->cost(in, out, s.attrs);
}

}  // namespace tg
