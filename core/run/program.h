// Program: a compiled graph, with its steps, their kernels, one memory plan and all addresses.
#pragma once

#include <cstring>
#include <memory>
#include <optional>

#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/backend.h>

namespace tg {

// A value for an input, of the input's dtype. An Array must have the input's shape; a vector or span, which
// has no shape, must have as many elements as the input. Feeding a different dtype throws DTypeError; a
// different shape or number of elements throws ShapeError.
//
// Arrays are shared, and temporary vectors are moved. Named vectors and spans are not copied: they must stay
// unchanged until they are fed. Only a temporary vector causes an allocation.
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
  // dtype. Throws DTypeError if the dtype cannot represent the number. For integers, that is a fraction, a
  // number out of range or an integer that would be rounded. For floats, it is a finite number that would
  // become infinite.
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
  // maximum of the intermediate results that are live at one step: a lower bound for arena
  std::size_t alive = 0;
  std::size_t inputs = 0;      // inputs
  std::size_t constants = 0;   // constants
  std::size_t workspace = 0;   // scratch memory of kernels
  std::size_t results = 0;     // small fetched tensors, and the device's record of a run's error
  std::size_t parameters = 0;  // parameters that are read or assigned; the caller owns them
  // The effect of CompileOptions::memory_budget: the values that are recomputed, their cost, and the memory
  // that recomputation and a different order of the steps save.
  struct Recomputed {
    int steps = 0;     // steps that recompute a value
    int products = 0;  // of these, GEMMs and attention, which are used only if cheap values do not suffice
    double moved = 0;  // bytes that these steps read and write per run
    double flops = 0;  // FLOPs of the GEMMs and attention
    double price = 0;  // their time, in bytes that could be copied meanwhile (price_of in core/run/cost.h)
    std::size_t saved = 0;  // bytes of arena saved
  };
  Recomputed recomputed = {};  // zeros without a budget
  // Total bytes, which CompileOptions::memory_budget limits.
  std::size_t peak() const { return arena + inputs + constants + workspace + results + parameters; }
};

// A buffer of the memory plan: bytes [offset, offset + bytes) of the arena, used from step `first` to step
// `last`. Two buffers never overlap in both bytes and steps. The highest end is MemoryReport::arena.
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
// On a GPU, run() starts the run and returns, and feed() copies the values and returns. The device executes
// all calls in order. So the inputs of the next run can be fed, and that run started, while a run is in
// progress. Only fetch() and Pending wait.
//
// Threads: one thread at a time may use a Program. feed(), run() and profile() throw Error if one of them is
// in progress. It may be in progress in a different thread, or in the run that called a host function.
// Different programs may run at the same time. run() throws Error if they share an arena, or if one of them
// assigns a parameter that the other one uses.
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
  // The results of the run are then invalid. The parameters that it would have assigned keep their values,
  // and so do those of runs started before the error was thrown.
  void run();
  // Feeds the inputs, then runs.
  void run(std::initializer_list<Feed> feeds);
  // Feeds the inputs, then runs.
  void run(std::span<const Feed> feeds);
  // Runs once, waiting after every step, and returns the time of each step in seconds, in the order of
  // steps().
  std::vector<double> profile();
  // Writes an input, which keeps the value for all later runs. The source of the values may be changed after
  // the return. Throws Error for a tensor that is not an input, or on which nothing in this program depends,
  // for example because an update was not assigned. See Feed for DTypeError and ShapeError. Inputs fed in
  // recording order are copied to a GPU together.
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
  // All buffers of the arena, by their first step. An output that is written in place has the buffer of its
  // input.
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

// Values of a run, which may still be computed or copied. Any number of Pending objects may exist at a time.
// Memory of destroyed ones is reused. fetch(), item(), number(), values() and wait() wait for the run. If it
// failed, each of them throws its error.
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
  // Declares that these values depend on an earlier run. Functions that wait for this object first wait for
  // `earlier`, and throw its error if it failed. Replaces the previous dependency.
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
  // Returns the elements in row-major order, without a copy. They are valid while this Pending or a copy of
  // it exists. Throws DTypeError if T is not the tensor's type, and ShapeError if the tensor is not stored in
  // row-major order. Allocates nothing.
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
