// The ops by name: the built-in ones of ops.h and those that users register.
#include <deque>
#include <string_view>

#include <tilegrad/ops/ops.h>
#include "core/compile/reduced_chains.h"
#include "ops/list.h"

namespace tg {

#define TG_DECLARE(name) extern const Op name##_op;
TG_OPS(TG_DECLARE)
#undef TG_DECLARE

namespace {
std::deque<Op>& user_ops() {
  static auto& ops = *new std::deque<Op>;  // addresses stay, after static objects are gone too
  return ops;
}
}  // namespace

std::vector<const Op*> all_ops() {
#define TG_ADDRESS(name) &name##_op,
  std::vector<const Op*> ops{TG_OPS(TG_ADDRESS)};
#undef TG_ADDRESS
  for (const Op& op : user_ops()) ops.push_back(&op);
  return ops;
}

const Op* find_op(std::string_view name) {
  for (const Op* op : all_ops())
    if (op->name == name) return op;
  return nullptr;
}

const Op& register_op(Op op) {
  const auto refuse = [&](const std::string& why) {
    throw Error("[register_op] '" + op.name + "' " + why + " " + at_line(op.where));
  };
  if (op.name.empty()) refuse("is no name for an op");
  if (!op.infer) refuse("has no shape rule (Op::infer)");
  // The compiler makes ops too, and backends find kernels by name.
  if (find_op(op.name) || op.name == fused_op.name || op.name == reduced_chain_op.name)
    refuse("is the name of another op: choose a new one");
  return user_ops().emplace_back(std::move(op));
}

}  // namespace tg
