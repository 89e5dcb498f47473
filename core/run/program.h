// Program: a compiled graph, with its steps, their kernels, one memory plan and all addresses.
#pragma once

#include <cstring>
#include <memory>
#include <optional>

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/backend.h>

namespace tg {

// A value for an input, with the dtype of the input. An Array must also have the input's shape. A vector or
// span must have the same number of elements. Otherwise Program::feed() throws: DTypeError for a different
// dtype, ShapeError for a different shape or number of elements.
//
// Arrays are shared, and temporary vectors are moved. Named vectors and spans are not copied, so they must
// stay unchanged until they are fed. Only a temporary vector causes an allocation.
class Feed {
 public:
  // Feeds an Array.
  Feed(const Tensor& input, const Array& value)
      : Feed(input, value.raw(), value.numel(), value.dtype(), value.share()) {
    shape_ = value.shape();
  }
  // Feeds a vector, without a copy.
  template <class T>
  Feed(const Tensor& input, const std::vector<T>& values) : Feed(input, std::span<const T>(values)) {}
  // Feeds a temporary vector, which the Feed keeps.
  template <class T>
  Feed(const Tensor& input, std::vector<T>&& values)
      : Feed(input, std::make_shared<const std::vector<T>>(std::move(values))) {}
  // Feeds a span, without a copy.
  template <class T>
  Feed(const Tensor& input, std::span<T> values)
      : Feed(input, reinterpret_cast<const std::byte*>(values.data()),
             static_cast<std::int64_t>(values.size()), dtype_of<std::remove_const_t<T>>, nullptr) {}
  // Feeds a number to an input of one element, converted to its dtype. Fractions are rounded to a floating
  // dtype. Throws DTypeError if the dtype cannot represent the number. Integer dtypes reject fractions,
  // numbers out of range, and integers that would be rounded. Floating dtypes reject finite numbers that
  // would become infinite.
  template <class N>
  requires std::is_arithmetic_v<N> Feed(const Tensor& input, N number)
      : Feed(input, static_cast<long double>(number), std::is_floating_point_v<N>) {}

  // The input that is fed.
  const Tensor& input() const { return input_; }
  // The elements.
  const std::byte* data() const { return data_ ? data_ : number_; }
  std::int64_t count() const { return count_; }  // number of elements
  // The dtype of the elements.
  DType dtype() const { return dtype_; }
  const std::optional<Shape>& shape() const { return shape_; }  // set for an Array only

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

// A program's memory in bytes, by purpose. It is known before the first run.
struct MemoryReport {
  std::size_t arena = 0;  // intermediate results
  // maximum number of bytes that are live at one step; a lower bound for `arena`
  std::size_t alive = 0;
  std::size_t inputs = 0;      // inputs
  std::size_t constants = 0;   // constants
  std::size_t workspace = 0;   // scratch memory of kernels
  std::size_t results = 0;     // small fetched tensors, and the device's record of a run's error
  std::size_t parameters = 0;  // parameters that are read or assigned; the caller owns them
  // The effect of CompileOptions::memory_budget: recomputed values, their cost, and the memory saved by
  // recomputation and by a different order of the steps.
  struct Recomputed {
    int steps = 0;          // steps that recompute a value
    int products = 0;       // number of GEMMs and attention steps among them
    double moved = 0;       // bytes that these steps read and write per run
    double flops = 0;       // FLOPs of the GEMMs and attention
    double price = 0;       // total of price_of (core/run/cost.h) over these steps
    std::size_t saved = 0;  // bytes of arena saved
  };
  Recomputed recomputed = {};  // zeros without a budget
  // Total bytes, which CompileOptions::memory_budget limits.
  std::size_t peak() const { return arena + inputs + constants + workspace + results + parameters; }
};

// A buffer of the memory plan: bytes [offset, offset + bytes) of the arena, used from step `first` to step
// `last`. If two buffers overlap in bytes, they do not overlap in steps. The highest end is
// MemoryReport::arena.
struct ArenaBuffer {
  std::size_t offset = 0;  // bytes from the start of the arena
  std::size_t bytes = 0;   // size, a multiple of 64
  int first = 0;           // index of the first step that writes the buffer, in Program::steps()
  // Index of the last step that accesses the buffer, or steps().size() if it is fetched after the run.
  int last = 0;
};

// Values of a run that may still be in progress; see below.
class Pending;

// A compiled graph that can run many times. A Program keeps its nodes, parameters and memory alive. Copies
// refer to the same program.
//
// On a GPU, run() returns after it has started the run, and feed() returns after it has copied the values.
// The device executes all calls in order. While a run is in progress, the inputs of the next run can
// therefore be fed, and the next run can be started. Only fetch() and Pending wait.
//
// Threads: one thread at a time may use a Program. feed(), run() and profile() throw Error if one of these
// functions is in progress. It may be in progress in a different thread, or in the run that called the
// current host function. Different programs may run at the same time. If they share an arena, or if one
// assigns a parameter that the other uses, run() throws Error.
class Program {
 public:
  // The internal state.
  struct State;
  // Wraps an internal state; compile() creates programs.
  explicit Program(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // Runs every step once. Allocates nothing. Throws Error if an input was never fed, or if the program is
  // already running. Runs started by host functions may be nested up to 32 levels deep.
  //
  // An index out of range (embedding, gather, …) throws Error with step and source line. An exception of a
  // user-defined op throws Error with the exception nested (std::rethrow_if_nested). On the CPU, run() throws
  // these errors. On a GPU, the first fetch, Pending or Parameter::read that waits for the run throws them.
  // The results of the run are then invalid. Parameters are not assigned by the failed run, nor by later runs
  // that were started before the error was thrown.
  void run();
  // Feeds the inputs, then runs.
  void run(std::initializer_list<Feed> feeds);
  // Feeds the inputs, then runs.
  void run(std::span<const Feed> feeds);
  // Runs once and waits after every step. Returns the time of each step in seconds, in the order of steps().
  std::vector<double> profile();
  // Writes an input. The input keeps the value for all later runs. The caller may change the source of the
  // values after the return. Throws Error for a tensor that is not an input. Also throws it if the program
  // does not depend on the input, for example because an update was not assigned. See Feed for DTypeError and
  // ShapeError. Inputs fed in recording order are copied to a GPU together.
  void feed(const Feed& feed);
  // Whether the program has this input, so that feed() accepts it.
  bool reads(const Tensor& input) const;

  // Returns the value of a fetched tensor after the last run. Throws Error before the first run, after a
  // failed run, and for a tensor that compile() did not fetch, because its memory may have been reused.
  Array fetch(const Tensor& t) const;
  // Returns the only element of a fetched tensor. Throws DTypeError if T is not its type, and ShapeError if
  // there is not exactly one element.
  template <class T>
  T item(const Tensor& t) const {
    return fetch(t).item<T>();
  }

  // Returns a handle on the values of the last run, without waiting. Later runs do not change them.
  //
  //     program.run(…);  Pending now = program.fetch_later({loss});   // step n
  //     …                                                             // start step n + 1
  //     now.item<float>(loss)
  Pending fetch_later(std::initializer_list<Tensor> ts);
  // Same for a span of tensors.
  Pending fetch_later(std::span<const Tensor> ts);

  // Sets the seed of random ops; default 0. Their numbers are a function of (seed, step, node).
  void seed(std::uint64_t seed);
  // Sets the step of random ops. It counts runs, from 0.
  void set_step(std::int64_t step);

  // Memory by purpose, in bytes.
  MemoryReport memory() const;
  // The device on which the program runs.
  Device device() const;
  // The options that the backend received.
  const PrepareOptions& options() const;
  // The steps, in execution order.
  std::span<const Step> steps() const;
  std::string text() const;  // one line per step: op, shapes, attributes, source line
  // Describes how a step runs: instruction set or GPU, algorithm and tiles of the kernel. Also works for a
  // program that is only planned.
  std::string choice(std::size_t step) const;
  // All buffers of the arena, sorted by their first step. An output that is written in place uses the buffer
  // of its input.
  std::span<const ArenaBuffer> buffers() const;
  const Graph& graph() const;                // the graph that it was compiled from
  std::span<const ValueId> outputs() const;  // values of the graph: first the fetched, then the assigned ones

 private:
  State& state() const {
    if (!state_) refuse();
    return *state_;
  }
  [[noreturn]] static void refuse();
  std::shared_ptr<State> state_;
};

// Values of a run. The run, or the copy of the values, may still be in progress. Any number of Pending
// objects may exist at the same time, and memory of destroyed objects is reused. fetch(), item(), number(),
// values() and wait() wait for the run. If the run failed, they throw its error.
class Pending {
 public:
  // An empty Pending: its functions throw Error.
  Pending() = default;
  // Wraps a transfer; Program::fetch_later() creates these.
  Pending(std::shared_ptr<const Program::State> program, std::shared_ptr<Transfer> transfer)
      : program_(std::move(program)), transfer_(std::move(transfer)) {}

  // Waits for the run and the copy.
  void wait() const;
  bool ready() const;  // whether fetch() and item() would not wait
  // Declares that these values depend on an earlier run. Functions that wait for this object then first wait
  // for `earlier`. If the earlier run failed, they throw its error. Replaces the previous dependency.
  void depend_on(const Pending& earlier);
  // Returns the value of a tensor.
  Array fetch(const Tensor& t) const;
  // Returns the only element. Throws DTypeError if T is not the tensor's type, and ShapeError if there are
  // more elements. Allocates nothing.
  template <class T>
  T item(const Tensor& t) const {
    if (t.dtype() != dtype_of<T>) refuse(t, dtype_of<T>);
    T value;
    std::memcpy(&value, element(t), sizeof value);
    return value;
  }
  // Returns the only element as a double, for any dtype.
  double number(const Tensor& t) const { return load_element(t.dtype(), element(t), 0); }
  // Returns the elements in row-major order, without a copy. They are valid while this Pending, or a copy of
  // this Pending, exists. Throws DTypeError if T is not the tensor's type, and ShapeError if the tensor is
  // not stored in row-major order. Allocates nothing.
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
