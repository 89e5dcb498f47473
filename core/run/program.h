// Program: a compiled graph: steps with their kernels, one memory plan, and the addresses of everything.
#pragma once

#include <cstring>
#include <memory>

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/backend.h>

namespace tg {

// A value for an input: shape and dtype must be the input's. A view: what it was made from has to be there
// until it is fed.
class Feed {
 public:
  Feed(Tensor to, const Array& value)
      : input(to), data(value.raw()), count(value.numel()), dtype(value.dtype()) {}
  template <class T>
  Feed(Tensor to, const std::vector<T>& values)
      : input(to),
        data(reinterpret_cast<const std::byte*>(values.data())),
        count(static_cast<std::int64_t>(values.size())),
        dtype(dtype_of<T>) {}
  template <class T>
  Feed(Tensor to, std::span<const T> values)
      : input(to),
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
  std::size_t results = 0;     // small fetched tensors, and what the device notes about a run
  std::size_t parameters = 0;  // read or assigned; owned by the caller
  std::size_t peak() const { return arena + inputs + constants + workspace + results + parameters; }
};

// A buffer of the plan: bytes [offset, offset + bytes) of the arena, written first by step `first` and last
// touched by step `last`, both counted as in Program::steps(); last = steps().size() for what is fetched
// after the run. Bytes are a multiple of 64. No two overlap in both; the highest end is MemoryReport::arena.
struct ArenaBuffer {
  std::size_t offset = 0, bytes = 0;
  int first = 0, last = 0;
};

class Pending;

// On a GPU run() starts the run and returns, feed() takes the values and returns, and whatever follows is in
// order: a program is fed for the next run, and the next run started, while one is under way. Only fetch()
// and Pending wait.
class Program {
 public:
  struct State;
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Runs every step once. Nothing is allocated. An index out of range (embedding, gather, …) throws Error
  // with step and source line, what a user-defined op throws comes out as it is: at once on the CPU, on a GPU
  // with the first fetch, Pending or Parameter::read that waits for this run. Parameters assigned at the end
  // of that run, and of others started before it was told, keep their values; results are void.
  void run();
  void run(std::initializer_list<Feed> feeds);
  void run(std::span<const Feed> feeds);
  // Runs once, waiting after every step, and returns the seconds each of steps() took: where the time goes.
  std::vector<double> profile();
  // Writes an input; it keeps the value for all later runs. The values may change once it returns. Throws
  // when it is not an input of this program. Inputs fed in the order they were recorded in are copied to a
  // GPU in one piece.
  void feed(const Feed& feed);

  // A fetched tensor's value after the last run. Throws Error for a tensor that was not asked for at compile
  // time: its memory may have been reused.
  Array fetch(const Tensor& t) const;
  template <class T>
  T item(const Tensor& t) const {
    return fetch(t).item<T>();
  }

  // The same without waiting: a handle on the values as the last run leaves them, whatever runs later.
  //   program.run(…);  Pending now = program.fetch_later({loss});   // step n
  //   …                                                            // start step n + 1
  //   now.item<float>(loss)
  Pending fetch_later(std::initializer_list<Tensor> ts);
  Pending fetch_later(std::span<const Tensor> ts);

  // Random ops draw from (seed, step, node). The seed is 0 unless set; the step counts runs from 0.
  void seed(std::uint64_t seed);
  void set_step(std::int64_t step);

  MemoryReport memory() const;
  Device device() const;
  const PrepareOptions& options() const;
  std::span<const Step> steps() const;
  std::string text() const;  // one line per step: what runs, on which shapes
  // All that share the arena, by their first step. Results in place of an input go on with its buffer.
  std::span<const ArenaBuffer> buffers() const;
  const Graph& graph() const;                // what it was compiled from, while that lives
  std::span<const ValueId> outputs() const;  // of the graph: fetched values, then those assigned

 private:
  std::shared_ptr<State> state_;
};

// Values of a run, perhaps still on their way. Any number may exist at a time; memory of those no longer held
// is used again. fetch, item, number and wait wait for the run, and throw what it met each time.
class Pending {
 public:
  Pending() = default;
  Pending(std::shared_ptr<const Program::State> program, std::shared_ptr<Transfer> transfer)
      : program_(std::move(program)), transfer_(std::move(transfer)) {}

  void wait() const;
  bool ready() const;  // whether fetch and item would not have to wait
  Array fetch(const Tensor& t) const;
  // The only element, of the tensor's own type or as a double. Nothing is allocated.
  template <class T>
  T item(const Tensor& t) const {
    if (t.dtype() != dtype_of<T>) refuse(t, dtype_of<T>);
    T value;
    std::memcpy(&value, element(t), sizeof value);
    return value;
  }
  double number(const Tensor& t) const { return load_element(t.dtype(), element(t), 0); }

 private:
  const std::byte* bytes(const Tensor& t) const;
  const std::byte* element(const Tensor& t) const;
  [[noreturn]] static void refuse(const Tensor& t, DType dtype);
  std::shared_ptr<const Program::State> program_;  // before transfer_: it outlives it
  std::shared_ptr<Transfer> transfer_;
};

}  // namespace tg
