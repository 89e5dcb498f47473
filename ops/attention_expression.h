// Attention by expression: functions of the caller that change the scores of flash_attn or exclude keys. A
// function is called once, when the op is recorded. It records a scalar expression, which kernels then
// compute for each pair of a query and a key. No [L, T] tensor exists.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <tilegrad/core/graph/graph.h>

namespace tg {

namespace detail {
class ExpressionRecorder;
}

// The arguments of a score or mask function: scalars of one pair of a query and a key. They are tensors of
// rank 0 in a separate graph, in the compute type of the op (f64 for f64, otherwise f32). The function
// combines them with numbers and pointwise ops of ops/ops.h.
struct ScoreAt {
  // The score softcap(scale·q·kᵀ). Undefined in a mask function.
  Tensor score;
  // Whole numbers: the batch entry, the query head, and the positions of the query and the key in the text.
  // With L queries and T keys, query row r has the position i = r + T − L. Decoding and training then agree.
  // With AttentionOptions::top_left, i = r. In a packed sequence, both positions count from its beginning,
  // and L and T are its sizes. With kv_lengths, T is the length of the batch entry.
  Tensor b, h, i, t;

  // Returns the element captured[index…] of a tensor of the model. There is one index per axis, a number or a
  // tensor of this expression. Fractions of an index are discarded. Elements that are not floating are
  // converted to the compute type, and booleans stay booleans. If the tensor is floating, the backward of the
  // op returns its gradient. Throws ShapeError unless there is one index per axis, and Error after the
  // function has returned. An index out of range at a visible pair fails the run with an Error. For an
  // index in a mask function, the other options determine the visible pairs.
  Tensor at(const Tensor& captured, std::initializer_list<TensorArg> index,
            Where where = Where::current()) const;

 private:
  friend detail::ExpressionRecorder;
  std::shared_ptr<detail::ExpressionRecorder> recorder_;
};

// Returns a score (floating) or whether the pair is visible (boolean), as an expression of the arguments.
using ScoreFunction = std::function<Tensor(const ScoreAt&)>;

// A recorded score and mask as straight-line code, and the derivatives of the score. All values have the
// compute type; booleans are 0 or 1.
struct AttentionExpression {
  // Limits: ops with the derivatives, captured tensors, and their uses.
  static constexpr int max_code = 128, max_captured = 8, max_captures = 16;
  // A value of the code.
  struct Value {
    // Where the value comes from.
    enum Kind : std::uint8_t {
      none,      // no value
      score,     // argument of the functions
      b,         // batch entry
      h,         // query head
      i,         // position of the query
      t,         // position of the key
      constant,  // a number
      capture,   // element of a captured tensor
      result     // result of an instruction
    };
    Kind kind = none;        // the source
    std::int32_t index = 0;  // of a capture or an instruction; otherwise 0
    double number = 0;       // of a constant; otherwise 0
    // Whether both are the same value.
    friend bool operator==(const Value&, const Value&) = default;
  };
  // Bits of the arguments that a value depends on: 1 << Value::Kind.
  using Inputs = std::uint8_t;
  // A call of a pointwise op.
  struct Instruction {
    const Op* op;           // the op
    Attrs attrs;            // its attributes
    std::vector<Value> in;  // its operands
    DType dtype;            // of its result: the compute type or bool
    Inputs depends = 0;     // arguments that the result depends on
  };
  // A use of a captured tensor.
  struct Capture {
    int tensor = 0;            // index in the captured tensors
    std::vector<Value> index;  // one per axis
    DType dtype = DType::f32;  // of the element: the compute type or bool
    bool in_mask = false;      // the mask reads it
    Inputs depends = 0;        // arguments that its index depends on
    int before = 0;            // the instruction before which it is read: all its indices exist
  };

  DType compute = DType::f32;         // the compute type
  std::vector<Capture> captures;      // uses of captured tensors
  std::vector<Instruction> code;      // mask first, then score, then derivatives
  int captured = 0;                   // number of captured tensors
  Value mask, score;                  // results; Value::none if absent
  Value score_slope;                  // ∂A/∂score, for the score before the function
  std::vector<Value> slopes;          // ∂A/∂element of each capture; Value::none: 0
  std::string score_text, mask_text;  // for printing and hashing: "add(score, c0[h])"

  // The arguments that a value depends on.
  Inputs depends(const Value& v) const;
};

namespace detail {

// Options of attention that score and mask functions can also express.
struct PlainAttention {
  bool causal = false, top_left = false;
  std::int64_t window_left = -1, window_right = -1;
  double softcap = 0;
};

// Calls the functions (either may be empty) and returns the expression. Appends the captured tensors to
// `captured`. A mask that bounds t − i by a number, or such a part of a conjunction, becomes an option, and
// so does a score cap·tanh(score / cap), because kernels are faster with options. Returns null if nothing
// else remains. Throws Error for ops that are not pointwise, for tensors of the model that are used without
// at(), for random ops, and for expressions that exceed the limits.
std::shared_ptr<const AttentionExpression> record_expression(const ScoreFunction& score,
                                                             const ScoreFunction& mask, DType compute,
                                                             std::vector<Tensor>& captured,
                                                             PlainAttention& plain, const Where& where);

// Throws DTypeError or ShapeError unless the operands fit the expression. An op that is recorded by name
// may have other operands.
void check_captured(const AttentionExpression& expression, DType dtype, const Operand* captured);

}  // namespace detail

}  // namespace tg
