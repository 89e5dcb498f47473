// A language model's training step and its evaluation, each one Program over the same parameters.
#pragma once

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/optimizers/optimizer.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace tg::train {

class GradientTree;
class LocalTokens;

struct ProgramOptions {
  std::int64_t batch = 12;  // rows of `context` tokens
  int threads = 0;          // 0: all of the machine's
  bool verify = false;      // this and the next: see CompileOptions
  bool plan_only = false;
  nn::Precision precision = nn::Precision::full;
  bool predictions = false;     // EvaluationProgram gives the likeliest tokens too
  std::int64_t accumulate = 1;  // batches in a step, whose gradients are averaged over all their targets
  // The ranks that train together, each an equal share of the batches of a step, all with these options;
  // null: one rank. `accumulate` is the number of batches on all ranks.
  std::shared_ptr<Communicator> ranks = {};
  // The ranks divide the tokens of each sequence instead of the batches (nn::ContextParallel): all compute
  // each batch of a step, each its own tokens. The context must be a multiple of twice their number.
  bool context_parallel = false;
  // With an optimizer that divides its update among ranks: gradients are added few at a time, as soon as they
  // are there, and only the rank's piece of the sum is kept (ZeRO stage 2). The bits are the same. Of use
  // where a rank has one batch of a step.
  bool hoist_collectives = false;
  // Parts of a batch's rows in which head and loss are computed one after the other, so that the logits of
  // one need exist at a time; 0: as many as memory_budget asks for. A step has the same bits with any number.
  // They are of whole units of rows (LinearCrossEntropyOptions), and so not of one size and not always as
  // many.
  std::int64_t loss_chunks = 0;
  bool recompute = false;  // keeps only the inputs of blocks for the backward pass, which runs them again
  // Bytes for a training step, parameters and the optimizer's state included; 0: no limit. See
  // CompileOptions::memory_budget. Of all numbers of loss_chunks with which a step fits, with half copies and
  // without, it has what takes the least time, as planned, with what is computed again. An EvaluationProgram
  // has no use for it.
  std::size_t memory_budget = 0;
  std::size_t memory_held = 0;  // bytes of memory_budget that other objects already use
  // In bf16 and f16 weights are read from copies that the optimizer's pass writes (nn::LowPrecisionCopies), 2
  // bytes for each number; false: they are cast in every step, with the same bits.
  bool low_precision_copies = true;
  // Of programs that never run at the same time; default: memory of its own, one for both of `accumulate`.
  std::shared_ptr<SharedArena> arena = {};
};

// Forward with dropout, backward, clipping and the optimizer's update, all one Program. With `accumulate`
// the gradients of a step's batches are summed by a fixed tree (gradient_tree.h). Where a rank has several of
// them there are more programs: one for the forward and backward of a batch, run once for each; small ones
// that add; and one for clipping and update. So the graph, its plan and its memory stay those of one batch,
// plus its gradients once for each level of the tree. A batch counts as much as it has targets that are not
// ignored, so the step equals that of an `accumulate`-times larger batch, up to rounding and dropout.
//
// With ranks the gradients and the loss of all are added, in f32 for half types. Either each rank makes the
// same update, or, with an optimizer that has the same ranks, its part of it. So parameters, results and what
// is skipped are the same on all ranks. If `accumulate` is a power of two, they have the same bits on any
// number of ranks that divides it and 16.
class TrainingProgram {
 public:
  // Errors of the model's runs name the line of this call.
  TrainingProgram(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                  const ProgramOptions& options, std::uint64_t seed = 0 /* of dropout */,
                  const Where& where = Where::current());

  struct Result {
    float loss, grad_norm;
    std::int64_t skipped;         // steps so far whose gradient was not finite
    std::int64_t overflowed = 0;  // steps so far that a smaller loss scale would have saved
    float loss_scale = 1;         // for the next step
  };
  // tokens and targets i32 [accumulate·batch, context], row-major: of all ranks, of which each takes its own
  // batches, or with context_parallel its own tokens of each row.
  Result run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
             double learning_rate) {
    return result(start(tokens, targets, learning_rate));
  }
  // The same in two parts: on a GPU start() does not wait, and the next step may be started before the result
  // of this one is read.
  Pending start(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                double learning_rate);
  Result result(const Pending& step) const;
  // With ranks that divide the update, a step leaves f32 weights of which the next one reads a half copy new
  // in each rank's part alone. This makes them whole, on all ranks, which must all call it before anything
  // else reads them: an evaluation, a checkpoint. Otherwise it does nothing.
  void gather_weights();
  void set_step(std::int64_t step);  // the number of steps run before, from which dropout continues
  // Of the step; with `accumulate`, of both programs. `constants` includes sums of gradients and half copies.
  // With memory_budget `recomputed` includes what chunks of the loss move and save.
  MemoryReport memory() const;
  std::int64_t loss_chunks() const { return variant_.chunks; }
  // The node that first produced a NaN or an infinity in a step that was skipped, the one after `step` others
  // (core/report/bad_node.h); empty if there is none.
  std::string first_bad_node(const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets, std::int64_t step);
  Program& program() { return *program_; }  // of a step, or with `accumulate` of one batch

 private:
  // One of the programs that compute the step.
  struct Variant {
    std::int64_t chunks = 1;
    bool has_copies = false;  // half copies of weights
    double moved = 0;         // bytes, more than without chunks
    std::size_t whole = 0;    // bytes of the arena without chunks and without a budget
  };
  static Variant variant_for(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                             const ProgramOptions& options, const Where& where);
  TrainingProgram(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                  const ProgramOptions& options, const Variant& variant, std::uint64_t seed,
                  const Where& where);
  // Where a rank has several batches of a step: their sums, and the program that updates by them.
  struct Parts {
    std::shared_ptr<GradientTree> sums;
    std::size_t state_bytes = 0;  // of the optimizer's state, and of weights that a batch does not read
    Graph graph;
    std::optional<Program> program;
  };
  optim::WeightReading reading_of(const optim::Optimizer& optimizer) const;
  std::size_t bytes_beside_shards(const optim::Optimizer& optimizer) const;
  // Of the step, the loss last; also finds what the update reads, reading_ and scattered_bytes_.
  std::vector<Tensor> gradients_and_loss(const optim::Optimizer& optimizer);
  void compile_gather(const optim::Optimizer& optimizer, const ProgramOptions& options);
  void compile_whole(const optim::Optimizer& optimizer, ProgramOptions options);
  void compile_parts(const optim::Optimizer& optimizer, ProgramOptions options);
  // Sums over the ranks of what each has, the loss last, which become loss_ and update_.
  void update_by(const optim::Optimizer& optimizer, std::vector<Tensor> sums);
  bool divides_tokens() const;  // of a batch among the ranks
  bool divides_batches() const { return ranks_ && !divides_tokens(); }
  std::int64_t own_batches() const { return divides_batches() ? accumulate_ / ranks_->size() : accumulate_; }
  std::int64_t first_own() const { return divides_batches() ? ranks_->rank() * own_batches() : 0; }
  std::vector<Feed> feeds_of(std::int64_t batch, const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets) const;
  // Tokens of one batch, of all ranks; throws ShapeError unless these are those of a step.
  std::size_t batch_size(const std::vector<std::int32_t>& tokens,
                         const std::vector<std::int32_t>& targets) const;

  Variant variant_;
  std::optional<nn::LowPrecisionCopies> copies_;
  bool hoist_collectives_;
  optim::WeightReading reading_;  // of weights, by the step
  std::shared_ptr<const LocalTokens> own_;
  Graph graph_;
  Tensor tokens_, targets_, loss_;
  Tensor share_;  // [], an input where a step has several parts: of its targets, those that the part has
  std::uint64_t seed_;
  int threads_;
  std::int64_t accumulate_, step_ = 0;
  std::shared_ptr<Communicator> ranks_;
  optim::Optimizer::Update update_;
  std::unique_ptr<Parts> parts_;
  Graph gather_graph_;
  std::optional<Program> gather_;    // of weights; none where all are whole
  std::size_t scattered_bytes_ = 0;  // of such weights, beside the shards that the step has
  bool is_scattered_ = false;
  std::vector<Tensor> results_;
  std::optional<Program> program_;
};

// The mean loss of a batch, without dropout; with context_parallel of the rank's own tokens.
class EvaluationProgram {
 public:
  EvaluationProgram(const nn::LanguageModel& model, const ProgramOptions& options,
                    const Where& where = Where::current());
  float run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) {
    return result(start(tokens, targets));
  }
  // As TrainingProgram's, of one batch.
  Pending start(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets);
  std::int64_t own_targets(
      const std::vector<std::int32_t>& targets) const;  // over which the loss is the mean
  float result(const Pending& batch) const { return static_cast<float>(batch.number(loss_)); }
  // The likeliest token after each position, i64 [batch, context], of a rank's own tokens with
  // context_parallel; only with ProgramOptions::predictions.
  Array predictions(const Pending& batch) const { return batch.fetch(predictions_); }
  Program& program() { return program_; }

 private:
  std::shared_ptr<const LocalTokens> own_;
  Graph graph_;
  Tensor tokens_, targets_, logits_, loss_, predictions_;
  std::vector<Tensor> results_;
  Program program_;
};

// The exact memory of both programs on one arena, without allocating it.
struct TrainingMemory {
  MemoryReport training, evaluation;
  std::int64_t loss_chunks = 1;  // of the training step
  std::size_t beside_parameters() const;
  std::size_t peak() const { return training.parameters + beside_parameters(); }
  void require(std::size_t budget) const;  // throws OutOfMemory if peak() is more; 0: no limit
};
// memory_budget is that of peak(). Throws OutOfMemory with the least that is possible.
TrainingMemory plan_memory(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                           ProgramOptions options);

// The options of a TrainingProgram and an EvaluationProgram that run alternately: one arena for both, and
// memory_held includes the memory that only the evaluation uses.
ProgramOptions sharing_memory(const nn::LanguageModel& model, ProgramOptions options,
                              const Where& where = Where::current());

// The largest batch below `too_large` for which needed(batch), which grows with it, is at most `free`; 0 if
// there is none. Memory is nearly linear in the batch, so a few calls suffice.
std::int64_t largest_batch(std::int64_t too_large, std::size_t free,
                           const std::function<std::size_t(std::int64_t)>& needed);

}  // namespace tg::train
