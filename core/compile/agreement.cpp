#include "core/compile/bind.h"

#include <algorithm>

#include <tilegrad/core/graph/graph.h>
#include "core/base/hash.h"
#include "core/graph/op_attrs.h"
#include "core/run/ranks.h"

namespace tg {

namespace {

std::uint64_t hash_of(const Step& s) {
  Hasher h;
  h.add(s.op->name);
  h.add(s.attrs.text());
  for (const std::vector<Arg>* args : {&s.in, &s.out}) {
    h.add(args->size());
    for (const Arg& a : *args) {
      h.add(name_of(a.dtype));
      h.add(a.layout.shape);
      h.add(a.layout.strides);
    }
  }
  return h.digest()[0];
}

// The first step that differs from rank 0's program, and the rank that differs.
struct Difference {
  std::size_t step = SIZE_MAX;
  int rank = 0;
};

Difference first_difference(std::span<const std::uint64_t> hashes, Communicator& ranks) {
  Difference first;
  constexpr std::size_t most = Communicator::most_shared / sizeof(std::uint64_t);
  for (std::size_t from = 0; from < hashes.size(); from += most) {
    const auto piece = hashes.subspan(from, std::min(most, hashes.size() - from));
    ranks.share(std::as_bytes(piece), [&](std::span<const std::byte* const> shown) {
      const auto at = [&](std::size_t rank, std::size_t i) {
        return reinterpret_cast<const std::uint64_t*>(shown[rank])[i];
      };
      for (std::size_t i = 0; i < piece.size() && first.step == SIZE_MAX; ++i)
        for (std::size_t r = 1; r < shown.size(); ++r)
          if (at(r, i) != at(0, i)) first = {from + i, static_cast<int>(r)};
    });
  }
  return first;
}

void compare(std::span<const Step> steps, Communicator& ranks) {
  std::vector<std::uint64_t> hashes;
  for (const Step& s : steps) hashes.push_back(hash_of(s));
  // Compares the steps in chunks up to the end of the shortest program. Then compares the lengths.
  const std::vector<std::uint64_t> counts = gather_one(ranks, std::uint64_t{hashes.size()});
  const auto [least, most] = std::ranges::minmax(counts);
  const Difference d = first_difference(std::span(hashes).first(least), ranks);
  if (d.step == SIZE_MAX && least == most) return;
  if (d.step == SIZE_MAX)
    throw Error("[compile] the programs of the ranks have " + std::to_string(least) + " to " +
                std::to_string(most) + " steps: all ranks must compile the same program");
  const Step& own = steps[d.step];
  throw Error("[compile] the programs of ranks 0 and " + std::to_string(d.rank) + " differ in step " +
              std::to_string(d.step) + ", which is " + own.name + " on rank " + std::to_string(ranks.rank()) +
              ": all ranks must compile the same program " + at_line(own.where));
}

}  // namespace

void check_ranks(std::span<const Step> steps, Communicator* ranks, bool plan_only) {
  const int size = ranks ? ranks->size() : 1;
  for (const Step& s : steps)
    if (const RankAttrs* a = rank_attrs_of(*s.op, s.attrs); a && a->ranks != size && !(plan_only && !ranks))
      throw Error("[" + s.name + "] is for " + std::to_string(a->ranks) + " ranks, but compile got " +
                  (ranks ? "a communicator of " + std::to_string(size)
                         : std::string("no communicator (CompileOptions::ranks)")) +
                  " " + at_line(s.where));
  if (ranks && !plan_only) compare(steps, *ranks);
}

}  // namespace tg
