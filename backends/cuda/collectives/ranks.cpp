#include "backends/cuda/collectives/ranks.h"

#include <algorithm>
#include <string>
#include <vector>

#include <tilegrad/core/base/error.h>
#include "backends/cuda/collectives/exchange.h"
#include "core/graph/op_attrs.h"

namespace tg::cuda {

namespace {

using Bytes = std::size_t;

struct Message {
  BufferSlice at;
  Bytes bytes;
  int peer;
  bool operator==(const Message& m) const {
    return at.at == m.at.at && at.offset == m.at.offset && bytes == m.bytes;
  }
};

// Messages of one NCCL group call. NCCL needs microseconds for each message. All messages to the same rank
// are therefore packed into one.
struct Exchange {
  std::vector<Message> sent, received;
  std::vector<PieceCopy> packed, unpacked;  // copies before and after the NCCL call
  std::shared_ptr<const CopyListPlan> pack, unpack;
};

// The plan of an exchange with its copies and sums. If a rank sums only its shard, a second exchange follows.
struct RanksPlan final : KernelPlan {
  std::shared_ptr<NcclGroup> group;
  Exchange first, second;
  std::vector<RankSum> summed;
  std::shared_ptr<const OrderedSumPlan> sums;
  Bytes received = 0;  // bytes of the workspace

  void launch(const Stream& s, const Call&) const override;
  std::size_t workspace(const Call&) const override { return received; }
  std::string choice(const Call&) const override;
};

Bytes aligned_to_16(Bytes n) {
  return (n + 15) / 16 * 16;
}

class RanksPlanner {
 public:
  RanksPlanner(const Step& step, std::shared_ptr<NcclGroup> group)
      : step_(step),
        ranks_(group ? group->size() : 1),
        rank_(group ? group->rank() : 0),
        attrs_(*rank_attrs_of(*step.op, step.attrs)),
        made_(std::make_unique<RanksPlan>()),
        plan_(*made_) {
    plan_.group = std::move(group);
    for (std::size_t i = 0; i < step.in.size(); ++i) add(step.in[i], step.out[i]);
    if (ranks_ > most_summed_ranks && !plan_.summed.empty())
      throw DeviceError("sums over " + std::to_string(ranks_) + " GPUs: at most " +
                        std::to_string(most_summed_ranks) + " are supported");
    const auto pack_exchange = [&](Exchange& e, bool sums) {
      pack(e.sent, e.packed, true);
      sums ? receive_for_sums() : pack(e.received, e.unpacked, false);
    };
    pack_exchange(plan_.first, !plan_.summed.empty());
    pack_exchange(plan_.second, false);
    for (Exchange* e : {&plan_.first, &plan_.second})
      e->pack = plan_copy_list(e->packed), e->unpack = plan_copy_list(e->unpacked);
    plan_.sums = plan_ordered_sum(plan_.summed);
  }

  PlanPtr result() { return std::move(made_); }

 private:
  static Bytes bytes_of(const Arg& a) { return static_cast<Bytes>(a.layout.numel()) * size_of(a.dtype); }

  void add(const Arg& x, const Arg& y) {
    if (!x.layout.is_contiguous()) throw DeviceError("its operands must be row-major: pass contiguous(x)");
    const Bytes bytes = bytes_of(x), piece = bytes / static_cast<Bytes>(ranks_);
    const Collective kind = step_.op->collective;
    if (kind == Collective::all_reduce) return add_sum(x, y);
    if (kind == Collective::reduce_scatter) return add_scatter(x, y);
    if (kind == Collective::local_shard)
      return copy({x.data, static_cast<Bytes>(rank_) * piece}, {y.data, 0}, piece);
    if (kind == Collective::ppermute) {
      const int n = ranks_, from = ((rank_ - attrs_.shift) % n + n) % n,
                to = ((rank_ + attrs_.shift) % n + n) % n;
      if (from == rank_) return copy({x.data, 0}, {y.data, 0}, bytes);
      send({x.data, 0}, bytes, to);
      return receive({y.data, 0}, bytes, from);
    }
    const bool gathers = kind == Collective::all_gather;  // otherwise all_to_all: the piece of each rank
    const Bytes each = gathers ? bytes : piece;
    for (int r = 0; r < ranks_; ++r) {
      const BufferSlice from{x.data, gathers ? 0 : static_cast<Bytes>(r) * piece},
          to{y.data, static_cast<Bytes>(r) * each};
      if (r == rank_)
        copy(from, to, each);
      else
        send(from, each, r), receive(to, each, r);
    }
  }

  void send(BufferSlice from, Bytes bytes, int to) {
    if (bytes > 0) plan_.first.sent.push_back({from, bytes, to});
  }
  void receive(BufferSlice to, Bytes bytes, int from) {
    if (bytes > 0) plan_.first.received.push_back({to, bytes, from});
  }
  void copy(BufferSlice from, BufferSlice to, Bytes bytes) {
    if (bytes > 0) plan_.first.packed.push_back({from, to, bytes});
  }

  // If there are few elements, each rank sends all of them to all ranks, and each rank computes the complete
  // sum. If there are two ranks, they do so for any size. They then do not send sums, which may be twice as
  // wide. Otherwise each rank sums a shard and sends the sums to all ranks.
  void add_sum(const Arg& x, const Arg& y) {
    constexpr std::int64_t few = 1 << 14, granule = 64;
    const std::int64_t n = x.layout.numel();
    const Bytes size = size_of(x.dtype), result = size_of(y.dtype);
    if (n <= few || ranks_ <= 2) {
      for (int r = 0; r < ranks_; ++r)
        if (r != rank_) send({x.data, 0}, static_cast<Bytes>(n) * size, r);
      return sum(x, 0, n, y.data, y.dtype);
    }
    const std::int64_t piece = ((n - 1) / ranks_ / granule + 1) * granule;
    const auto begin = [&](int r) { return std::min<std::int64_t>(n, r * piece); };
    const auto count = [&](int r) { return static_cast<Bytes>(begin(r + 1) - begin(r)); };
    const Bytes own = static_cast<Bytes>(begin(rank_));
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      const Bytes of_peer = static_cast<Bytes>(begin(r));
      send({x.data, of_peer * size}, count(r) * size, r);
      if (count(rank_) > 0) plan_.second.sent.push_back({{y.data, own * result}, count(rank_) * result, r});
      if (count(r) > 0) plan_.second.received.push_back({{y.data, of_peer * result}, count(r) * result, r});
    }
    sum(x, own, begin(rank_ + 1) - begin(rank_), y.data + own * result, y.dtype);
  }

  void add_scatter(const Arg& x, const Arg& y) {
    const std::int64_t piece = y.layout.numel();
    const Bytes bytes = static_cast<Bytes>(piece) * size_of(x.dtype);
    for (int r = 0; r < ranks_; ++r)
      if (r != rank_) send({x.data, static_cast<Bytes>(r) * bytes}, bytes, r);
    sum(x, static_cast<Bytes>(rank_ * piece), piece, y.data, y.dtype);
  }

  void sum(const Arg& x, Bytes first, std::int64_t count, std::byte* out, DType to) {
    if (count > 0) plan_.summed.push_back({x.data + first * size_of(x.dtype), out, 0, 0, count, x.dtype, to});
  }

  // Data from the other ranks is stored consecutively, in the layout that these ranks packed.
  void receive_for_sums() {
    Bytes all = 0, last = 0;
    for (RankSum& s : plan_.summed) {
      s.received = plan_.received + all;
      last = static_cast<Bytes>(s.count) * size_of(s.from);
      all += aligned_to_16(last);
    }
    for (RankSum& s : plan_.summed) s.stride = all;
    // A single message is not packed, so it contains no padding.
    const Bytes sent = plan_.summed.size() == 1 ? last : all;
    for (int r = 0; r < ranks_; ++r)
      if (r != rank_) {
        receive({nullptr, plan_.received}, sent, r);
        plan_.received += all;
      }
  }

  // Combines all messages of a peer into one message in the workspace. In this message, each original message
  // is aligned to 16 bytes. `copies` packs messages before they are sent, or unpacks them after they are
  // received.
  void pack(std::vector<Message>& messages, std::vector<PieceCopy>& copies, bool sent) {
    std::vector<Message> before, packed;  // before: the previous peer's messages that were packed
    for (int r = 0; r < ranks_; ++r) {
      std::vector<Message> own;
      std::ranges::copy_if(messages, std::back_inserter(own), [&](const Message& m) { return m.peer == r; });
      if (own.size() < 2) {
        packed.insert(packed.end(), own.begin(), own.end());
      } else if (sent && own == before) {  // the same data for all peers
        packed.push_back({packed.back().at, packed.back().bytes, r});
      } else {
        const Bytes begin = plan_.received;
        for (const Message& m : own) {
          const BufferSlice there{nullptr, plan_.received};
          copies.push_back(sent ? PieceCopy{m.at, there, m.bytes} : PieceCopy{there, m.at, m.bytes});
          plan_.received += aligned_to_16(m.bytes);
        }
        packed.push_back({{nullptr, begin}, plan_.received - begin, r});
        before = own;
      }
    }
    messages = packed;
  }

  const Step& step_;
  const int ranks_, rank_;
  const RankAttrs& attrs_;
  std::unique_ptr<RanksPlan> made_;
  RanksPlan& plan_;
};

void run_exchange(const Exchange& e, const NcclGroup* group, const Stream& s) {
  launch_copy_list(s, *e.pack);
  if (!e.sent.empty() || !e.received.empty()) {
    group->begin();
    for (const Message& m : e.sent) group->send(m.at.in(s.workspace), m.bytes, m.peer, s.stream);
    for (const Message& m : e.received) group->recv(m.at.in(s.workspace), m.bytes, m.peer, s.stream);
    group->end();
  }
  launch_copy_list(s, *e.unpack);
}

void RanksPlan::launch(const Stream& s, const Call&) const {
  run_exchange(first, group.get(), s);
  launch_ordered_sum(s, *sums, group ? group->rank() : 0, group ? group->size() : 1);
  run_exchange(second, group.get(), s);
}

std::string RanksPlan::choice(const Call&) const {
  if (!group) return "a group of one";
  Bytes sent = 0;
  for (const Exchange* e : {&first, &second})
    for (const Message& m : e->sent) sent += m.bytes;
  return "NCCL among " + std::to_string(group->size()) + " ranks, sends " + std::to_string(sent) + " bytes" +
         (summed.empty() ? "" : ", sums in a fixed tree");
}

}  // namespace

PlanPtr plan_ranks(const Step& step, std::shared_ptr<NcclGroup> group) {
  return RanksPlanner(step, std::move(group)).result();
}

}  // namespace tg::cuda
