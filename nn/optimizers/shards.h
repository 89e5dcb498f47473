// Divides the update of parameters among ranks (ZeRO stage 1, Rajbhandari et al., 2020). The first elements
// of a parameter are divided into one piece per rank; only that rank stores the optimizer's state of the
// piece. The number of divided elements is the same for 1, 2, 4, 8 and 16 ranks. All ranks update the
// remaining elements, which are fewer than 16·norm_block. A shard is a part of a parameter that a rank
// updates: the whole parameter, a piece, or the remaining elements. With one rank, all shards are whole
// parameters.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/core/run/communicator.h>

namespace tg::optim {

// A part of a parameter that a rank updates.
struct Shard {
  // Which part of the parameter it is.
  enum class Kind {
    whole,  // all elements
    piece,  // this rank's part of the divided elements
    rest    // the elements that all ranks update
  };
  std::size_t place;          // index of the parameter
  Kind kind;                  // see Kind
  std::int64_t first, count;  // elements of the parameter, in row-major order
};

// The new value of a shard.
struct NewWeight {
  Tensor weight;  // in the parameter's dtype
  // The weight in the copy's dtype. If it is undefined, the weight is cast to that dtype after the update.
  Tensor copy = {};
};

// How weights are read between two updates. With ranks, some weights are read only through their
// low-precision copies. Each rank then updates its own shards of the weight,
// and all elements of the copy.
struct WeightReading {
  std::vector<Parameter> copies = {};  // by parameter; empty if it has no copy
  std::vector<bool> only_copies = {};  // by parameter: whether only its copy is read
};

namespace detail {

// Whether only the parameter's copy is read.
bool is_by_copy(const WeightReading& reading, std::size_t place);
// Returns the dtype of a parameter's copy, or nothing.
std::optional<DType> copy_type(const WeightReading& reading, std::size_t place);

// The shards of all parameters of an optimizer.
class Shards {
 public:
  // Null `ranks` mean one rank. `is_divisible` returns whether the elements of a parameter are updated
  // independently of each other. If it is empty, all parameters are divisible.
  Shards(std::vector<Parameter> parameters, std::shared_ptr<Communicator> ranks,
         const std::function<bool(const Parameter&)>& is_divisible);

  // All parameters.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::shared_ptr<Communicator>& ranks() const { return ranks_; }  // null: one rank
  const std::vector<Shard>& list() const { return list_; }               // shards of a parameter are adjacent
  // The parameter that a shard belongs to.
  const Parameter& parameter_of(std::size_t shard) const { return parameters_[list_[shard].place]; }
  bool has_rest(std::size_t shard) const;  // whether the next shard is the rest of the same parameter
  // Returns the parameter's shape if the shard is the whole parameter, otherwise [count].
  Shape shape_of(std::size_t shard) const;

  // Sums over the ranks, in f32 for 16-bit types; with one rank, the inputs.
  struct Sums {
    Tensor loss;                    // sum of the losses
    std::vector<Tensor> gradients;  // by parameter: sums for this rank's shards
  };
  // Appends the sums. `early`: reduce a few gradients at a time, as soon as they are ready.
  Sums sums(const Tensor& loss, const std::vector<Tensor>& gradients, bool early) const;
  // Returns the norm [] of all gradients, which are given by shard. It is computed from norms of blocks, and
  // is bitwise identical for any number of ranks that divides 16.
  Tensor norm(const std::vector<Tensor>& gradients) const;

  std::vector<Tensor> weights(Graph& graph, const WeightReading& reading) const;  // by shard
  // Adds the assignments of new weights and copies to `assign`.
  void assign(const std::vector<NewWeight>& news, const WeightReading& reading,
              std::vector<Assign>& assign) const;
  // Returns assignments that complete, on all ranks, the weights that are read only through copies.
  std::vector<Assign> whole_weights(Graph& graph, const WeightReading& reading) const;

  // Returns one Parameter for all shards of a parameter. `shard` is the first of them, and `kept` has the
  // stored values by shard. If the shard is the whole parameter, returns its stored Parameter. Otherwise
  // returns a new Parameter on the CPU, whose values are undefined until gather() is called.
  Parameter whole(std::size_t shard, const std::vector<Parameter>& kept) const;
  // Fills `to`, a result of whole(). All ranks must call it; `to` is empty on ranks that do not need the
  // values.
  void gather(std::size_t shard, const std::vector<Parameter>& kept, Parameter to) const;
  // Sets `kept` from a value with the shape and dtype of whole(). This is the reverse of gather(). Throws
  // ShapeError or DTypeError for any other value.
  void scatter(std::size_t shard, const std::vector<Parameter>& kept, const Array& value) const;
  // Throws as scatter() does.
  void check(std::size_t shard, const std::vector<Parameter>& kept, const Array& value) const;

 private:
  int ranks_count() const { return ranks_ ? ranks_->size() : 1; }
  Tensor slice_of(const Tensor& x, std::size_t shard) const;
  // Joins the tensors of the shards on all ranks. Returns one tensor for each parameter, with its shape. The
  // tensor is undefined if the parameter has no defined shards.
  std::vector<Tensor> joined(const std::vector<Tensor>& by_shard) const;

  std::vector<Parameter> parameters_;
  std::shared_ptr<Communicator> ranks_;
  std::vector<Shard> list_;
  std::vector<Parameter> parts_;  // by shard: part of the parameter; empty if the shard is whole
};

// Throws ShapeError or DTypeError unless the value has this shape and the parameter's dtype.
void check_value(const Parameter& to, const Shape& shape, const Array& value);

}  // namespace detail

}  // namespace tg::optim
