// The ops by name: the built-in ones of ops.h and those that users register.
#include <deque>
#include <string_view>

#include <tilegrad/ops/ops.h>
#include "ops/list.h"

namespace tg {

#define TG_DECLARE(name) extern const Op name##_op;
TG_OPS(TG_DECLARE)
#undef TG_DECLARE

namespace {
std::deque<Op>& user_ops() {
  static std::deque<Op> ops;  // addresses stay
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
  if (find_op(op.name))
    throw Error("[register_op] an op named '" + op.name + "' is already registered: choose another name");
  return user_ops().emplace_back(std::move(op));
}

}  // namespace tg
