// The training step and the evaluation of a language model, each one Program over the same parameters.
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

// Options of TrainingProgram and EvaluationProgram.
struct ProgramOptions {
  std::int64_t batch = 12;                        // rows of `context` tokens per batch
  int threads = 0;                                // 0: all cores of the machine
  bool verify = false;                            // as CompileOptions::verify
  bool plan_only = false;                         // as CompileOptions::plan_only
  nn::Precision precision = nn::Precision::full;  // of layers; see nn::Autocast
  bool predictions = false;                       // EvaluationProgram also computes the likeliest tokens
  // Batches per step, over all ranks. Gradients are averaged over all their targets.
  std::int64_t accumulate = 1;
  // The ranks that train together; null: one rank. They have the same options and an equal number of the
  // step's batches, whose total is `accumulate`.
  std::shared_ptr<Communicator> ranks = {};
  // Ranks divide the tokens of each sequence instead of the batches (nn::ContextParallel): every rank
  // computes its tokens of every batch. The context must be a multiple of twice the number of ranks.
  bool context_parallel = false;
  // For an optimizer that divides its update among ranks: reduces a few gradients at a time, as soon as they
  // are ready. Keeps only the rank's shard of the sum (ZeRO stage 2). Results are bitwise identical. It helps
  // if each rank has one batch per step.
  bool hoist_collectives = false;
  // Number of chunks into which the rows of a batch are divided. Head and loss are computed one chunk after
  // the other, so that only the logits of one chunk exist at a time. 0: chosen by memory_budget. Results are
  // bitwise identical for any number. Chunks consist of full row units (LinearCrossEntropyOptions). The
  // number of chunks can therefore differ slightly from this number.
  std::int64_t loss_chunks = 0;
  // Store only the inputs of blocks for the backward pass, which recomputes the blocks.
  bool recompute = false;
  // Limit in bytes for a training step, including parameters and the optimizer's state; 0: no limit. See
  // CompileOptions::memory_budget. Variants of the step differ in loss_chunks and in whether low-precision
  // weight copies are used. Among the variants that fit, the one with the lowest estimated time is used. This
  // time includes recomputation. EvaluationProgram ignores it.
  std::size_t memory_budget = 0;
  std::size_t memory_held = 0;  // bytes of memory_budget that other objects already use
  // In bf16 and f16, read weights from low-precision copies (nn::LowPrecisionCopies). The update writes them;
  // they need 2 bytes per element. false: cast weights in every step, with bitwise identical results.
  bool low_precision_copies = true;
  // Memory shared with programs that never run at the same time. Default: a separate arena, which both
  // programs of `accumulate` share.
  std::shared_ptr<SharedArena> arena = {};
};

// A training step: forward with dropout, backward, gradient clipping and the optimizer's update in one
// Program. With `accumulate`, the gradients of a step's batches are summed by a fixed tree (gradient_tree.h).
// If a rank has several batches, more programs are used:
// - one for forward and backward, which is run once per batch;
// - small ones that add gradients;
// - one for clipping and update.
//
// The graph and the plan are then for one batch. The memory is enough for one batch and for one set of
// gradients per tree level. Batches are weighted by their number of targets that are not ignored. Up to
// rounding and dropout, the step is therefore equal to a step with an `accumulate` times larger batch.
//
// With ranks, gradients and losses are summed over the ranks, in f32 for 16-bit types. Every rank performs
// the same update. If the optimizer has the same ranks, each performs its share of the update. Parameters,
// results and skipped steps are therefore the same on all ranks. If `accumulate` is a power of two, they are
// bitwise identical for any number of ranks that divides both `accumulate` and 16.
class TrainingProgram {
 public:
  // Compiles the step and allocates its memory. `seed` is for dropout. Errors of the model's runs name the
  // source line of this call. Throws Error for invalid options, and OutOfMemory if memory_budget is too
  // small.
  TrainingProgram(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                  const ProgramOptions& options, std::uint64_t seed = 0 /* of dropout */,
                  const Where& where = Where::current());

  // The result of a step.
  struct Result {
    float loss, grad_norm;        // mean over the step's targets; gradient norm before clipping
    std::int64_t skipped;         // steps so far that were skipped because of a non-finite gradient
    std::int64_t overflowed = 0;  // steps so far that were skipped because the loss scale was too large
    float loss_scale = 1;         // of the next step
  };
  // Runs a step. `tokens` and `targets` are i32 [accumulate·batch, context], row-major, for all ranks. Each
  // rank reads its own batches or, with context_parallel, its own tokens of each row.
  Result run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
             double learning_rate) {
    return result(start(tokens, targets, learning_rate));
  }
  // Starts a step. On a GPU it does not wait, and the next step may be started before this one's result is
  // read.
  Pending start(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                double learning_rate);
  // Returns the result of a step from start(); waits until it has finished.
  Result result(const Pending& step) const;
  // Completes the f32 weights on all ranks. If ranks divide the update and read a weight only through its
  // low-precision copy, a step updates only the rank's own shard of the f32 weight. Call it on all ranks
  // before the weights are read elsewhere, as in an evaluation or a checkpoint. Otherwise it does nothing.
  void gather_weights();
  // Sets the number of steps done before, which determines the dropout masks of the next step.
  void set_step(std::int64_t step);
  // The memory of a step; with `accumulate`, of both programs. `constants` includes gradient sums and
  // low-precision weight copies. With memory_budget, `recomputed` includes the bytes that loss chunks move
  // and save.
  MemoryReport memory() const;
  // The number of loss chunks that is used.
  std::int64_t loss_chunks() const { return variant_.chunks; }
  // Returns the name of the node that first produced a NaN or an infinity in a skipped step
  // (core/report/bad_node.h), or an empty string. `step` is the number of steps before it.
  std::string first_bad_node(const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets, std::int64_t step);
  // The program of a step; with `accumulate`, of one batch.
  Program& program() { return *program_; }

 private:
  // A variant of the step, as chosen by memory_budget.
  struct Variant {
    std::int64_t chunks = 1;
    bool has_copies = false;  // low-precision copies of weights
    double moved = 0;         // additional bytes of memory traffic because of chunks
    std::size_t whole = 0;    // bytes of the arena without chunks and without a budget
  };
  static Variant variant_for(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                             const ProgramOptions& options, const Where& where);
  TrainingProgram(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                  const ProgramOptions& options, const Variant& variant, std::uint64_t seed,
                  const Where& where);
  // If a rank has several batches per step: their gradient sums, and the program that performs the update.
  struct Parts {
    std::shared_ptr<GradientTree> sums;
    std::size_t state_bytes = 0;  // the optimizer's state, and weights that a batch does not read
    Graph graph;
    std::optional<Program> program;
  };
  optim::WeightReading reading_of(const optim::Optimizer& optimizer) const;
  std::size_t bytes_of_missing_shards(const optim::Optimizer& optimizer) const;
  // Returns the gradients of the step, followed by the loss. Sets reading_ and scattered_bytes_ for the
  // update.
  std::vector<Tensor> gradients_and_loss(const optim::Optimizer& optimizer);
  void compile_gather(const optim::Optimizer& optimizer, const ProgramOptions& options);
  void compile_whole(const optim::Optimizer& optimizer, ProgramOptions options);
  void compile_parts(const optim::Optimizer& optimizer, ProgramOptions options);
  // Reduces the sums (the loss is the last one) over the ranks and sets loss_ and update_.
  void update_by(const optim::Optimizer& optimizer, std::vector<Tensor> sums);
  bool divides_tokens() const;  // of a batch among the ranks
  bool divides_batches() const { return ranks_ && !divides_tokens(); }
  std::int64_t own_batches() const { return divides_batches() ? accumulate_ / ranks_->size() : accumulate_; }
  std::int64_t first_own() const { return divides_batches() ? ranks_->rank() * own_batches() : 0; }
  std::vector<Feed> feeds_of(std::int64_t batch, const std::vector<std::int32_t>& tokens,
                             const std::vector<std::int32_t>& targets) const;
  // The number of tokens in one batch of all ranks. Throws ShapeError unless both vectors have the size of a
  // step.
  std::size_t batch_size(const std::vector<std::int32_t>& tokens,
                         const std::vector<std::int32_t>& targets) const;

  Variant variant_;
  std::optional<nn::LowPrecisionCopies> copies_;
  bool hoist_collectives_;
  optim::WeightReading reading_;  // how the step reads weights
  std::shared_ptr<const LocalTokens> own_;
  Graph graph_;
  Tensor tokens_, targets_, loss_;
  Tensor share_;  // [] input if a step has several parts: the part's fraction of the step's targets
  std::uint64_t seed_;
  int threads_;
  std::int64_t accumulate_, step_ = 0;
  std::shared_ptr<Communicator> ranks_;
  optim::Optimizer::Update update_;
  std::unique_ptr<Parts> parts_;
  Graph gather_graph_;
  std::optional<Program> gather_;    // gathers weights; none if each rank has complete weights
  std::size_t scattered_bytes_ = 0;  // memory of these weights, in addition to the step's shards
  bool is_scattered_ = false;
  std::vector<Tensor> results_;
  std::optional<Program> program_;
};

// Computes the mean loss of a batch without dropout; with context_parallel, over the rank's own tokens.
class EvaluationProgram {
 public:
  // Compiles the evaluation and allocates its memory. Errors of the model's runs name the source line of this
  // call.
  EvaluationProgram(const nn::LanguageModel& model, const ProgramOptions& options,
                    const Where& where = Where::current());
  // Returns the loss of one batch; tokens and targets are i32 [batch, context], row-major.
  float run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) {
    return result(start(tokens, targets));
  }
  // Starts the evaluation of one batch, as TrainingProgram::start() does.
  Pending start(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets);
  // Returns the number of the rank's targets that are not ignored. The loss is the mean over them.
  std::int64_t own_targets(const std::vector<std::int32_t>& targets) const;
  // Returns the loss of a batch from start(); waits until it has finished.
  float result(const Pending& batch) const { return static_cast<float>(batch.number(loss_)); }
  // Returns the likeliest token after each position, i64 [batch, context]; with context_parallel, for the
  // rank's own tokens. Requires ProgramOptions::predictions.
  Array predictions(const Pending& batch) const { return batch.fetch(predictions_); }
  // The program of a batch.
  Program& program() { return program_; }

 private:
  std::shared_ptr<const LocalTokens> own_;
  Graph graph_;
  Tensor tokens_, targets_, logits_, loss_, predictions_;
  std::vector<Tensor> results_;
  Program program_;
};

// The exact memory of both programs with one arena, planned without allocating it.
struct TrainingMemory {
  MemoryReport training, evaluation;  // reports of the two programs
  std::int64_t loss_chunks = 1;       // number of loss chunks in the training step
  // Returns peak() without the parameters, in bytes.
  std::size_t without_parameters() const;
  // Returns the memory of both programs in bytes.
  std::size_t peak() const { return training.parameters + without_parameters(); }
  // Throws OutOfMemory if peak() is above `budget`; 0: no limit.
  void require(std::size_t budget) const;
};
// Plans both programs. options.memory_budget limits peak(). If that is impossible, throws OutOfMemory that
// contains the least possible value.
TrainingMemory plan_memory(const nn::LanguageModel& model, const optim::Optimizer& optimizer,
                           ProgramOptions options);

// Returns options for a TrainingProgram and an EvaluationProgram that run alternately. They share one arena,
// and memory_held includes the memory that only the evaluation uses.
ProgramOptions sharing_memory(const nn::LanguageModel& model, ProgramOptions options,
                              const Where& where = Where::current());

// Returns the largest batch below `too_large` with needed(batch) ≤ `free`, or 0 if there is none. `needed`
// must increase with the batch. Calls it only a few times, because memory is nearly linear in the batch.
std::int64_t largest_batch(std::int64_t too_large, std::size_t free,
                           const std::function<std::size_t(std::int64_t)>& needed);

}  // namespace tg::train
