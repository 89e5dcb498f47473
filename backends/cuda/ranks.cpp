#include "backends/cuda/ranks.h"

#include <algorithm>
#include <string>
#include <vector>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/check.h"
#include "backends/cuda/ordered_sum.h"
#include "core/graph/rank_attrs.h"

namespace tg::cuda {

namespace {

using Bytes = std::size_t;

// What one rank sends to another, as offsets from a base that is known when the program is recorded.
struct Message {
  std::byte* at;  // null: in the workspace
  Bytes offset, bytes;
  int peer;
  std::byte* in(std::byte* workspace) const { return (at ? at : workspace) + offset; }
};

// Messages that are on their way together.
struct Exchange {
  std::vector<Message> sent, received;
};

struct LocalCopy {
  std::byte *to, *from;
  Bytes bytes;
};

// Exchanges, sums and copies, in this order; then what all are to have of the sums.
struct RanksPlan {
  std::shared_ptr<NcclGroup> group;
  Exchange first, second;
  std::vector<LocalCopy> copies;
  std::vector<RankSum> summed;
  std::shared_ptr<const void> sums;
  Bytes workspace = 0;
};

class RanksPlanner {
 public:
  RanksPlanner(const Step& step, std::shared_ptr<NcclGroup> group)
      : step_(step),
        ranks_(group ? group->size() : 1),
        rank_(group ? group->rank() : 0),
        attrs_(*rank_attrs_of(*step.op, step.attrs)) {
    plan_.group = std::move(group);
    for (std::size_t i = 0; i < step.in.size(); ++i) add(step.in[i], step.out[i]);
    if (ranks_ > most_summed_ranks && !plan_.summed.empty())
      throw DeviceError("sums over " + std::to_string(ranks_) + " GPUs: at most " +
                        std::to_string(most_summed_ranks) + " are supported");
    plan_.sums = plan_ordered_sum(plan_.summed);
  }

  std::shared_ptr<const void> result() { return std::make_shared<RanksPlan>(std::move(plan_)); }

 private:
  static Bytes bytes_of(const Arg& a) { return static_cast<Bytes>(a.layout.numel()) * size_of(a.dtype); }

  void add(const Arg& x, const Arg& y) {
    if (!x.layout.is_contiguous()) throw DeviceError("its operands must be row-major: pass contiguous(x)");
    const Op* const op = step_.op;
    const Bytes bytes = bytes_of(x), piece = bytes / static_cast<Bytes>(ranks_);
    if (op == &sum_ranks_op) return add_sum(x, y);
    if (op == &scatter_sum_op) return add_scatter(x, y);
    if (op == &own_piece_op) return copy(y.data, x.data + rank_ * piece, piece);
    if (op == &shift_ranks_op) {
      const int n = ranks_, from = ((rank_ - attrs_.shift) % n + n) % n,
                to = ((rank_ + attrs_.shift) % n + n) % n;
      if (from == rank_) return copy(y.data, x.data, bytes);
      plan_.first.sent.push_back({x.data, 0, bytes, to});
      plan_.first.received.push_back({y.data, 0, bytes, from});
      return;
    }
    const bool gathers = op == &gather_ranks_op;  // else exchange_ranks: the piece of each rank
    const Bytes each = gathers ? bytes : piece;
    for (int r = 0; r < ranks_; ++r) {
      const Bytes from = gathers ? 0 : static_cast<Bytes>(r) * piece, to = static_cast<Bytes>(r) * each;
      if (r == rank_) {
        copy(y.data + to, x.data + from, each);
      } else {
        plan_.first.sent.push_back({x.data, from, each, r});
        plan_.first.received.push_back({y.data, to, each, r});
      }
    }
  }

  void copy(std::byte* to, std::byte* from, Bytes bytes) {
    if (bytes > 0 && to != from) plan_.copies.push_back({to, from, bytes});
  }

  // Room in the workspace for `count` elements of each other rank, which are asked for, and their sum.
  void sum(const Arg& x, Bytes first, std::int64_t count, std::byte* out, DType to) {
    const RankSum s{x.data + first * size_of(x.dtype), out, plan_.workspace, count, x.dtype, to};
    int place = 0;
    for (int r = 0; r < ranks_; ++r)
      if (r != rank_)
        plan_.first.received.push_back({nullptr, s.received + static_cast<Bytes>(place++) * s.stride(),
                                        static_cast<Bytes>(count) * size_of(x.dtype), r});
    plan_.workspace += static_cast<Bytes>(ranks_ - 1) * s.stride();
    plan_.summed.push_back(s);
  }

  // Few elements go whole to all ranks, each of which adds all. Of many, a rank adds a piece, and the pieces
  // then go to all.
  void add_sum(const Arg& x, const Arg& y) {
    constexpr std::int64_t few = 1 << 14, granule = 64;
    const std::int64_t n = x.layout.numel();
    const Bytes size = size_of(x.dtype);
    if (n <= few || ranks_ == 1) {
      for (int r = 0; r < ranks_; ++r)
        if (r != rank_) plan_.first.sent.push_back({x.data, 0, static_cast<Bytes>(n) * size, r});
      return sum(x, 0, n, y.data, y.dtype);
    }
    const std::int64_t piece = ((n - 1) / ranks_ / granule + 1) * granule;
    const auto begin = [&](int r) { return std::min<std::int64_t>(n, r * piece); };
    const auto count = [&](int r) { return begin(r + 1) - begin(r); };
    const Bytes result = size_of(y.dtype), own = static_cast<Bytes>(begin(rank_));
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      const Bytes of_peer = static_cast<Bytes>(begin(r));
      plan_.first.sent.push_back({x.data, of_peer * size, static_cast<Bytes>(count(r)) * size, r});
      plan_.second.sent.push_back({y.data, own * result, static_cast<Bytes>(count(rank_)) * result, r});
      plan_.second.received.push_back({y.data, of_peer * result, static_cast<Bytes>(count(r)) * result, r});
    }
    sum(x, own, count(rank_), y.data + own * result, y.dtype);
  }

  void add_scatter(const Arg& x, const Arg& y) {
    const std::int64_t piece = y.layout.numel();
    const Bytes bytes = static_cast<Bytes>(piece) * size_of(x.dtype);
    for (int r = 0; r < ranks_; ++r)
      if (r != rank_) plan_.first.sent.push_back({x.data, static_cast<Bytes>(r) * bytes, bytes, r});
    sum(x, static_cast<Bytes>(rank_ * piece), piece, y.data, y.dtype);
  }

  const Step& step_;
  const int ranks_, rank_;
  const RankAttrs& attrs_;
  RanksPlan plan_;
};

void run_exchange(const Exchange& e, const NcclGroup& group, const Stream& s) {
  if (e.sent.empty() && e.received.empty()) return;
  group.begin();
  for (const Message& m : e.sent) group.send(m.in(s.workspace), m.bytes, m.peer, s.stream);
  for (const Message& m : e.received) group.recv(m.in(s.workspace), m.bytes, m.peer, s.stream);
  group.end();
}

void launch_ranks(const Stream& s, const Call& c) {
  const auto& p = *static_cast<const RanksPlan*>(c.plan);
  if (p.group) run_exchange(p.first, *p.group, s);
  for (const LocalCopy& k : p.copies)
    check(cudaMemcpyAsync(k.to, k.from, k.bytes, cudaMemcpyDeviceToDevice, s.stream), "a copy on the GPU");
  launch_ordered_sum(s, p.sums.get(), p.group ? p.group->rank() : 0, p.group ? p.group->size() : 1);
  if (p.group) run_exchange(p.second, *p.group, s);
}

std::size_t ranks_workspace(const Call& c) {
  return static_cast<const RanksPlan*>(c.plan)->workspace;
}

std::string ranks_choice(const Call& c) {
  const auto& p = *static_cast<const RanksPlan*>(c.plan);
  if (!p.group) return "a group of one";
  Bytes sent = 0;
  for (const Exchange* e : {&p.first, &p.second})
    for (const Message& m : e->sent) sent += m.bytes;
  return "NCCL among " + std::to_string(p.group->size()) + " ranks, sends " + std::to_string(sent) +
         " bytes" + (p.summed.empty() ? "" : ", sums in a fixed tree");
}

}  // namespace

extern const Kernel ranks_kernel{&launch_ranks, &ranks_workspace, nullptr, &ranks_choice};

std::shared_ptr<const void> plan_ranks(const Step& step, std::shared_ptr<NcclGroup> group) {
  return RanksPlanner(step, std::move(group)).result();
}

}  // namespace tg::cuda
