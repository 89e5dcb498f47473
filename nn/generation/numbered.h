// Texts by their numbers, which are given in ascending order and never again: found by place, without a
// search, for an engine looks each of its texts up several times in a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace tg::nn {
namespace detail {

// P: a pointer that owns its value; null for numbers without one. Each number after the last that was erased
// before all others takes the memory of a pointer.
template <class P>
class Numbered {
 public:
  // `number` is larger than all before it.
  void put(std::uint64_t number, P value) {
    values_.resize(static_cast<std::size_t>(number - first_));
    values_.push_back(std::move(value));
    ++size_;
  }
  // Null if there is none.
  auto* find(std::uint64_t number) const {
    return number >= first_ && number - first_ < values_.size()
               ? values_[static_cast<std::size_t>(number - first_)].get()
               : nullptr;
  }
  // The owner of a value that is there.
  const P& owner(std::uint64_t number) const { return values_[static_cast<std::size_t>(number - first_)]; }
  bool erase(std::uint64_t number) {
    if (!find(number)) return false;
    const P gone = std::move(values_[static_cast<std::size_t>(number - first_)]);  // destroyed last
    for (; !values_.empty() && !values_.front(); ++first_) values_.pop_front();
    --size_;
    return true;
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  template <class F>
  void each(F f) const {
    for (const P& value : values_)
      if (value) f(*value);
  }

 private:
  std::deque<P> values_;  // from number first_ on
  std::uint64_t first_ = 1;
  std::size_t size_ = 0;
};

}  // namespace detail
}  // namespace tg::nn
