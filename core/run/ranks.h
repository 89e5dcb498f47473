// Collectives for small data, which use a Communicator to gather numbers or plain structs of all ranks. Also
// the communicator of a single rank.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include <tilegrad/core/run/communicator.h>

namespace tg {

// Gathers the elements of all ranks, in rank order. All ranks must call it with the same number of elements,
// at most Communicator::most_shared bytes. Throws the errors of Communicator::share.
template <class T>
std::vector<T> gather(Communicator& ranks, std::span<const T> own) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(ranks.size()) * own.size());
  ranks.share(std::as_bytes(own), [&](std::span<const std::byte* const> shown) {
    for (std::size_t r = 0; r < shown.size() && !own.empty(); ++r)
      std::memcpy(all.data() + r * own.size(), shown[r], own.size_bytes());
  });
  return all;
}

// Gathers one element of each rank, in rank order.
template <class T>
std::vector<T> gather_one(Communicator& ranks, const T& own) {
  return gather(ranks, std::span(&own, 1));
}

// The communicator of a single rank.
class OneRank final : public Communicator {
 public:
  OneRank() : Communicator(0, 1) {}
  void share(std::span<const std::byte> own, const Reader& read) override {
    if (own.size() > most_shared)
      throw Error("[ranks] share: " + std::to_string(own.size()) + " bytes: expected at most " +
                  std::to_string(most_shared));
    const std::byte* shown = own.data();
    read({&shown, 1});
  }
};

}  // namespace tg
