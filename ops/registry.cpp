// The list of built-in ops, and the lookup of built-in and user-registered ops by name. For each NAME in the
// list, a file of this folder defines NAME_op. Only this file contains the list, so adding an op does not
// recompile other files. An op that is not in the list is not tested, benchmarked or documented.
#include <deque>
#include <mutex>
#include <string_view>

#include <tilegrad/ops/ops.h>
#include "core/base/messages.h"
#include "core/compile/fused_reductions.h"

// clang-format off
#define TG_OPS(X) \
  X(add) X(sub) X(mul) X(div) X(pow) X(remainder) X(maximum) X(minimum) X(neg) X(abs) X(sign) X(floor) X(sqrt) X(rsqrt) X(exp) X(log) \
  X(sin) X(cos) X(tanh) X(erf) X(sigmoid) X(relu) X(silu) X(gelu) X(gelu_tanh) \
  X(silu_slope) X(gelu_slope) X(gelu_tanh_slope) X(where) X(equal) X(not_equal) \
  X(less) X(less_equal) X(greater) X(greater_equal) X(logical_and) X(logical_or) X(logical_not) \
  X(cast) X(copy) X(contiguous) X(stop_gradient) \
  X(permute) X(view) X(expand) \
  X(slice) X(slice_assign) X(slice_at) \
  X(split) X(concat) \
  X(embedding) X(index_select) X(index_add) X(index_assign) \
  X(gather) X(scatter_add) X(top_k) X(sample) X(cumsum) X(arange) \
  X(full) \
  X(sum) X(mean) X(sum_squares) X(prod) X(max) X(min) X(argmax) X(argmin) \
  X(softmax) X(softmax_backward) X(log_softmax) X(log_softmax_backward) X(logsumexp) \
  X(layer_norm) X(layer_norm_backward) X(rms_norm) X(rms_norm_backward) \
  X(cross_entropy) X(cross_entropy_backward) X(linear_cross_entropy) \
  X(rope) \
  X(dropout) X(uniform) X(normal) X(bernoulli) X(randint) \
  X(adamw) X(squared_norm) X(global_norm) X(block_norms) \
  X(matmul) X(matmul_in_units) \
  X(flash_attn) X(flash_attn_backward) X(attention_keep_mask) X(paged_attn) \
  X(all_reduce) X(all_reduce_gradient) X(all_gather) X(reduce_scatter) X(all_to_all) X(ppermute) X(local_shard)
// clang-format on

namespace tg {

#define TG_DECLARE(name) extern const Op& name##_op;
TG_OPS(TG_DECLARE)
#undef TG_DECLARE

namespace {
struct UserOps {
  std::mutex mutex;
  std::deque<Op> ops;  // a deque never moves its elements
};
UserOps& user_ops() {
  static auto& ops =
      *new UserOps;  // never destroyed, because graphs in static objects may be destroyed later
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
  if (op.name.empty()) refuse("is not a name for an op");
  check_name("register_op", op.name);
  if (!op.infer) refuse("has no shape rule (Op::infer)");
  // Reject names of ops that the compiler creates too, because backends find kernels by name.
  UserOps& users = user_ops();
  const std::lock_guard lock(users.mutex);
  if (find_in(ops_and(users.ops), op.name) || op.name == fused_op.name || op.name == fused_reduction_op.name)
    refuse("is the name of another op: choose a new one");
  return users.ops.emplace_back(std::move(op));
}

}  // namespace tg
