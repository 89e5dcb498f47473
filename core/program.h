// Program: a compiled graph: steps with their kernels, one memory plan, and the addresses of everything.
#pragma once

#include <memory>

#include "core/backend.h"
#include "core/graph.h"

namespace tg {

// A value for an input: shape and dtype must be the input's.
class Feed {
 public:
  Feed(Tensor input, const Array& value)
      : input(input), data(value.raw()), count(value.numel()), dtype(value.dtype()) {}
  template <class T>
  Feed(Tensor input, const std::vector<T>& values)
      : input(input),
        data(reinterpret_cast<const std::byte*>(values.data())),
        count(static_cast<std::int64_t>(values.size())),
        dtype(dtype_of<T>) {}

  Tensor input;
  const std::byte* data;
  std::int64_t count;
  DType dtype;
};

// Bytes by what they hold, known before the first run.
struct MemoryReport {
  std::size_t arena = 0;  // intermediate results
  std::size_t alive = 0;  // of these, the most alive at one step: the lower bound for arena
  std::size_t inputs = 0;
  std::size_t constants = 0;
  std::size_t workspace = 0;   // kernels' scratch
  std::size_t parameters = 0;  // read or assigned; owned by the caller
  std::size_t peak() const { return arena + inputs + constants + workspace + parameters; }
};

class Program {
 public:
  struct State;
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Runs every step once. Nothing is allocated. Throws Error for an index out of range (embedding, gather,
  // …): the steps after it have not run then, so that parameters assigned at the end keep their values.
  void run();
  void run(std::initializer_list<Feed> feeds);
  void run(std::span<const Feed> feeds);
  // Runs once, waiting after every step, and returns the seconds each of steps() took: where the time goes.
  std::vector<double> profile();
  // Writes an input; it keeps the value for all later runs. Throws when it is not an input of this program.
  void feed(const Feed& feed);

  // A fetched tensor's value after the last run. Throws Error for a tensor that was not asked for at compile
  // time: its memory may have been reused.
  Array fetch(const Tensor& t) const;
  template <class T>
  T item(const Tensor& t) const {
    return fetch(t).item<T>();
  }

  // Random ops draw from (seed, step, node). The seed is 0 unless set; the step counts runs from 0.
  void seed(std::uint64_t seed);
  void set_step(std::int64_t step);

  MemoryReport memory() const;
  std::span<const Step> steps() const;
  std::string text() const;  // one line per step: what runs, on which shapes

 private:
  std::shared_ptr<State> state_;
};

}  // namespace tg
