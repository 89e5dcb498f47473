// The ops by name: the built-in ones of ops.h and those that users register.
#include <deque>
#include <mutex>
#include <string_view>

#include <tilegrad/ops/ops.h>
#include "core/base/printable.h"
#include "core/compile/reduced_chains.h"
#include "ops/list.h"

namespace tg {

#define TG_DECLARE(name) extern const Op& name##_op;
TG_OPS(TG_DECLARE)
#undef TG_DECLARE

namespace {
struct UserOps {
  std::mutex mutex;
  std::deque<Op> ops;  // their addresses never change
};
UserOps& user_ops() {
  static auto& ops = *new UserOps;  // never destroyed: graphs in static objects may outlive this file's
  return ops;
}

std::vector<const Op*> ops_and(const std::deque<Op>& users) {
#define TG_ADDRESS(name) &name##_op,
  std::vector<const Op*> ops{TG_OPS(TG_ADDRESS)};
#undef TG_ADDRESS
  for (const Op& op : users) ops.push_back(&op);
  return ops;
}
const Op* find_in(const std::vector<const Op*>& ops, std::string_view name) {
  for (const Op* op : ops)
    if (op->name == name) return op;
  return nullptr;
}
}  // namespace

std::vector<const Op*> all_ops() {
  UserOps& users = user_ops();
  const std::lock_guard lock(users.mutex);
  return ops_and(users.ops);
}

const Op* find_op(std::string_view name) {
  return find_in(all_ops(), name);
}

const Op& register_op(Op op) {
  const auto refuse = [&](const std::string& why) {
    throw Error("[register_op] '" + op.name + "' " + why + " " + at_line(op.where));
  };
  if (op.name.empty()) refuse("is no name for an op");
  check_name("register_op", op.name);
  if (!op.infer) refuse("has no shape rule (Op::infer)");
  // The compiler makes ops too, and backends find kernels by name.
  UserOps& users = user_ops();
  const std::lock_guard lock(users.mutex);
  if (find_in(ops_and(users.ops), op.name) || op.name == fused_op.name || op.name == reduced_chain_op.name)
    refuse("is the name of another op: choose a new one");
  return users.ops.emplace_back(std::move(op));
}

}  // namespace tg
