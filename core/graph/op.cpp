// Stores the ops of the library in memory that is never freed. This file also throws the error for attributes
// of a different op.
#include <tilegrad/core/graph/op.h>

#include <deque>
#include <mutex>

#include <tilegrad/core/base/error.h>

namespace tg {

void Attrs::refuse() {
  throw Error("[attrs] an op was given attributes of another op");
}

const Op* define_op(Op op) {
  static auto& mutex = *new std::mutex;
  static auto& ops = *new std::deque<Op>;  // a deque never moves its elements
  const std::lock_guard lock(mutex);
  for (const Op& other : ops) {
    if (other.name != op.name) continue;
    if (std::string_view(other.where.file_name()) != op.where.file_name() ||
        other.where.line() != op.where.line())
      throw Error("[define_op] two ops of the library are called '" + op.name + "'");
    return &other;
  }
  return &ops.emplace_back(std::move(op));
}

}  // namespace tg
