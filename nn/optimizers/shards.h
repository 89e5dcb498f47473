// How ranks divide the update of parameters (ZeRO stage 1, Rajbhandari et al., 2020). Of a parameter the
// first elements, as many for 1, 2, 4, 8 and 16 ranks, are divided into a piece for each rank, which alone
// keeps the optimizer's state of them. The rest, shorter than 16·norm_block elements, is updated by all ranks
// alike. What of a parameter a rank updates is a shard: all of it, a piece, or a rest. With one rank all
// shards are whole.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/core/run/communicator.h>

namespace tg::optim {

struct Shard {
  enum class Kind { whole, piece, rest };
  std::size_t place;  // of the parameter in the list
  Kind kind;
  std::int64_t first, count;  // elements of the parameter, in row-major order
};

struct NewWeight {
  Tensor weight;
  Tensor copy = {};  // in another dtype; undefined: it is cast behind the weight
};

// What is read of weights between two updates. With ranks, a weight of which only a copy in another dtype is
// read becomes new on each rank in its own shards alone, and the copy whole.
struct WeightReading {
  std::vector<Parameter> copies = {};  // by parameter; empty where there is none
  std::vector<bool> only_copies = {};  // by parameter
};

namespace detail {

// Whether nothing but a parameter's copy is read.
bool is_by_copy(const WeightReading& reading, std::size_t place);
// The dtype of a parameter's copy.
std::optional<DType> copy_type(const WeightReading& reading, std::size_t place);

class Shards {
 public:
  // Without `ranks`, one. `is_divisible`: whether the elements of a parameter are updated apart from each
  // other; default: those of all are.
  Shards(std::vector<Parameter> parameters, std::shared_ptr<Communicator> ranks,
         const std::function<bool(const Parameter&)>& is_divisible);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::shared_ptr<Communicator>& ranks() const { return ranks_; }  // null: one
  const std::vector<Shard>& list() const { return list_; }               // those of a parameter in a row
  const Parameter& parameter_of(std::size_t shard) const { return parameters_[list_[shard].place]; }
  bool has_rest(std::size_t shard) const;  // the next shard is the rest behind this piece
  // That of the parameter if the shard is all of it, else [count].
  Shape shape_of(std::size_t shard) const;

  // Sums over the ranks of what each has, in f32 for half types: the loss, and of gradients, by parameter,
  // those of this rank's shards. Of one rank they are what they were.
  struct Sums {
    Tensor loss;
    std::vector<Tensor> gradients;
  };
  // `early`: in a step for every few gradients, which runs as soon as they are there.
  Sums sums(const Tensor& loss, const std::vector<Tensor>& gradients, bool early) const;
  // The norm of all of them, by shard, from the norms of blocks: [], with the same bits for any number of
  // ranks that divides 16.
  Tensor norm(const std::vector<Tensor>& gradients) const;

  std::vector<Tensor> weights(Graph& graph, const WeightReading& reading) const;  // by shard
  void assign(const std::vector<NewWeight>& news, const WeightReading& reading,
              std::vector<Assign>& assign) const;
  // Makes the weights whole on all ranks that are read by copy alone.
  std::vector<Assign> whole_weights(Graph& graph, const WeightReading& reading) const;

  // What is kept of shards (by shard) of a parameter whose first one is `shard`, as one Parameter: if that is
  // whole what is kept, else a new one on the CPU. Its values are undefined until gather(), which all ranks
  // must call, has filled it; `to` is empty on ranks that do not need them.
  Parameter whole(std::size_t shard, const std::vector<Parameter>& kept) const;
  void gather(std::size_t shard, const std::vector<Parameter>& kept, Parameter to) const;
  // The other way round: sets what is kept from the value of one like whole(). Throws ShapeError or
  // DTypeError for another.
  void scatter(std::size_t shard, const std::vector<Parameter>& kept, const Array& value) const;
  void check(std::size_t shard, const std::vector<Parameter>& kept, const Array& value) const;  // throws so

 private:
  int ranks_count() const { return ranks_ ? ranks_->size() : 1; }
  Tensor slice_of(const Tensor& x, std::size_t shard) const;
  // By divided parameter one tensor of its shape, from its shards' tensors on all ranks; undefined where they
  // are.
  std::vector<Tensor> joined(const std::vector<Tensor>& by_shard) const;

  std::vector<Parameter> parameters_;
  std::shared_ptr<Communicator> ranks_;
  std::vector<Shard> list_;
  std::vector<Parameter> parts_;  // by shard, of the parameter; empty for a whole one
};

// Throws ShapeError or DTypeError for a value that is not of the shape or of the parameter's dtype.
void check_value(const Parameter& to, const Shape& shape, const Array& value);

}  // namespace detail

}  // namespace tg::optim
