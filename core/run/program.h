// Program: a compiled graph: steps with their kernels, one memory plan, and the addresses of everything.
#pragma once

#include <cstring>
#include <memory>
#include <optional>

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/backend.h>

namespace tg {

// A value for an input, of the input's dtype. An Array has the input's shape; a vector or span, which has no
// shape, as many elements. Feeding another dtype throws DTypeError, another shape or number of elements
// ShapeError.
//
// Arrays are shared, and vectors given as temporaries are moved in. Vectors with a name and spans are not
// copied: they must stay as they are until they are fed. Nothing is allocated but for a temporary vector.
class Feed {
 public:
  Feed(const Tensor& input, const Array& value)
      : Feed(input, value.raw(), value.numel(), value.dtype(), value.share()) {
    shape_ = value.shape();
  }
  template <class T>
  Feed(const Tensor& input, const std::vector<T>& values) : Feed(input, std::span<const T>(values)) {}
  template <class T>
  Feed(const Tensor& input, std::vector<T>&& values)
      : Feed(input, std::make_shared<const std::vector<T>>(std::move(values))) {}
  template <class T>
  Feed(const Tensor& input, std::span<T> values)
      : Feed(input, reinterpret_cast<const std::byte*>(values.data()),
             static_cast<std::int64_t>(values.size()), dtype_of<std::remove_const_t<T>>, nullptr) {}
  // A number for an input of one element, converted to its dtype. Throws DTypeError for one that the dtype
  // does not have: a fraction or a number out of range for integers, an integer that would be rounded, a
  // finite number that would become infinite. Fractions are rounded to a floating dtype as usual.
  template <class N>
  requires std::is_arithmetic_v<N> Feed(const Tensor& input, N number)
      : Feed(input, static_cast<long double>(number), std::is_floating_point_v<N>) {}

  const Tensor& input() const { return input_; }
  const std::byte* data() const { return data_ ? data_ : number_; }
  std::int64_t count() const { return count_; }  // elements
  DType dtype() const { return dtype_; }
  const std::optional<Shape>& shape() const { return shape_; }  // of an Array

 private:
  Feed(const Tensor& input, const std::byte* data, std::int64_t count, DType dtype,
       std::shared_ptr<const void> owner)
      : input_(input), data_(data), count_(count), dtype_(dtype), owner_(std::move(owner)) {}
  template <class T>
  Feed(const Tensor& input, std::shared_ptr<const std::vector<T>> values)
      : Feed(input, std::span<const T>(*values)) {
    owner_ = std::move(values);
  }
  Feed(const Tensor& input, long double number, bool may_round);

  Tensor input_;
  const std::byte* data_;  // null: the value is number_
  std::int64_t count_;
  DType dtype_;
  std::optional<Shape> shape_ = {};
  alignas(8) std::byte number_[8] = {};
  std::shared_ptr<const void> owner_;
};

// Bytes by what they hold, known before the first run.
struct MemoryReport {
  std::size_t arena = 0;  // intermediate results
  std::size_t alive = 0;  // of these, the most alive at one step: a lower bound for arena
  std::size_t inputs = 0;
  std::size_t constants = 0;
  std::size_t workspace = 0;   // kernels' scratch
  std::size_t results = 0;     // small fetched tensors, and the device's record of a run's error
  std::size_t parameters = 0;  // read or assigned; owned by the caller
  // With CompileOptions::memory_budget: what is computed twice, so that the arena needs no more, and what
  // that and another order of the steps save.
  struct Recomputed {
    int steps = 0;          // that compute something again
    int products = 0;       // of these, products and attention: only where what is cheap is not enough
    double moved = 0;       // bytes that the steps read and write in a run
    double flops = 0;       // of the products
    double price = 0;       // bytes that are copied in the time of all of it (price_of in core/run/cost.h)
    std::size_t saved = 0;  // bytes of arena
  } recomputed = {};
  std::size_t peak() const { return arena + inputs + constants + workspace + results + parameters; }
};

// A buffer of the plan: bytes [offset, offset + bytes) of the arena, first written by step `first` and last
// accessed by step `last`, both indices of Program::steps(); last = steps().size() if it is fetched after the
// run. `bytes` is a multiple of 64. No two buffers overlap both in bytes and in steps; the highest end is
// MemoryReport::arena.
struct ArenaBuffer {
  std::size_t offset = 0, bytes = 0;
  int first = 0, last = 0;
};

class Pending;

// A Program keeps what it needs: the nodes of its graph, its parameters and its memory. Copies of a Program
// are the same program.
//
// On a GPU run() starts the run and returns, and feed() copies the values and returns; everything happens in
// the order of the calls. So the inputs of the next run can be fed, and that run started, while one is under
// way. Only fetch() and Pending wait.
//
// Threads: one thread at a time may use a Program. feed(), run() and profile() throw Error if one of them is
// in progress, in another thread or in the run that called a host function. Different programs may run at the
// same time; run() throws Error if they share an arena, or if one of them assigns a parameter that the other
// one uses.
class Program {
 public:
  struct State;
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Feeds, then runs every step once; allocates nothing. Runs that host functions start may contain one
  // another up to 32 levels deep. Throws Error if an input was never fed, or if the program is running
  // already: one set of buffers serves one run at a time. An index out of range (embedding, gather, …) throws
  // Error with step and source line, and so does an exception of a user-defined op, with the exception itself
  // nested (std::rethrow_if_nested): on the CPU by run(), on a GPU by the first fetch, Pending or
  // Parameter::read that waits for this run. Then the run's results are void, and the parameters that it, and
  // runs started before the error was thrown, would have assigned keep their values.
  void run();
  void run(std::initializer_list<Feed> feeds);
  void run(std::span<const Feed> feeds);
  // Runs once, waiting after every step, and returns the seconds that each of steps() took.
  std::vector<double> profile();
  // Writes an input, which keeps the value for all later runs. The source of the values may change once this
  // returns. Throws Error for a tensor that is not an input, or that nothing in this program depends on, as
  // when an update was not assigned; see Feed for DTypeError and ShapeError. Inputs fed in the order in which
  // they were recorded are copied to a GPU in one piece.
  void feed(const Feed& feed);
  bool reads(const Tensor& input) const;  // whether the program has this input, so that feed() takes it

  // The value of a fetched tensor after the last run. Throws Error before a run, after one that failed, and
  // for a tensor that was not among compile()'s `fetch`: its memory may have been reused.
  Array fetch(const Tensor& t) const;
  template <class T>
  T item(const Tensor& t) const {
    return fetch(t).item<T>();
  }

  // The same without waiting: a handle on the values that the last run leaves, whatever runs later.
  //   program.run(…);  Pending now = program.fetch_later({loss});   // step n
  //   …                                                            // start step n + 1
  //   now.item<float>(loss)
  Pending fetch_later(std::initializer_list<Tensor> ts);
  Pending fetch_later(std::span<const Tensor> ts);

  // Random ops draw from (seed, step, node). The seed is 0 unless set; the step counts runs, from 0.
  void seed(std::uint64_t seed);
  void set_step(std::int64_t step);

  MemoryReport memory() const;
  Device device() const;
  const PrepareOptions& options() const;
  std::span<const Step> steps() const;
  std::string text() const;  // one line per step: op, shapes, attributes, source line
  // How a step runs, in words: instruction set or GPU, the kernel's algorithm and tiles. Also of a program
  // that was only planned.
  std::string choice(std::size_t step) const;
  // All buffers of the arena, by their first step. An output written in place has its input's buffer.
  std::span<const ArenaBuffer> buffers() const;
  const Graph& graph() const;                // what it was compiled from
  std::span<const ValueId> outputs() const;  // of the graph: fetched values, then assigned ones

 private:
  State& state() const {
    if (!state_) refuse();
    return *state_;
  }
  [[noreturn]] static void refuse();
  std::shared_ptr<State> state_;
};

// Values of a run, perhaps still being computed or copied. Any number may exist at a time; the memory of
// those no longer held is reused. fetch, item, number, values and wait wait for the run; if it failed, each
// of them throws its error.
class Pending {
 public:
  Pending() = default;
  Pending(std::shared_ptr<const Program::State> program, std::shared_ptr<Transfer> transfer)
      : program_(std::move(program)), transfer_(std::move(transfer)) {}

  void wait() const;
  bool ready() const;  // whether fetch and item would not have to wait
  // These values were made of what that run left: whatever waits for this one waits for that one first, and
  // throws its error, if it failed. Replaces the one that was given before.
  void depend_on(const Pending& earlier);
  Array fetch(const Tensor& t) const;
  // The only element, of the tensor's own type or as a double; throws ShapeError if there are more. Allocates
  // nothing.
  template <class T>
  T item(const Tensor& t) const {
    if (t.dtype() != dtype_of<T>) refuse(t, dtype_of<T>);
    T value;
    std::memcpy(&value, element(t), sizeof value);
    return value;
  }
  double number(const Tensor& t) const { return load_element(t.dtype(), element(t), 0); }
  // The elements in row-major order, of the tensor's own type, where the run's copy has them: they are there
  // as long as this Pending or a copy of it. Throws ShapeError for a tensor that does not lie in that order.
  // Allocates nothing.
  template <class T>
  std::span<const T> values(const Tensor& t) const {
    if (t.dtype() != dtype_of<T>) refuse(t, dtype_of<T>);
    return {reinterpret_cast<const T*>(in_order(t)), static_cast<std::size_t>(t.numel())};
  }

 private:
  Transfer& transfer() const;
  const std::byte* bytes(const Tensor& t) const;
  const std::byte* element(const Tensor& t) const;
  const std::byte* in_order(const Tensor& t) const;
  [[noreturn]] static void refuse(const Tensor& t, DType dtype);
  // Declared before the transfers, which they must outlive.
  std::shared_ptr<const Program::State> program_, earlier_program_;
  std::shared_ptr<Transfer> transfer_, earlier_;  // earlier_ may be null
};

}  // namespace tg
