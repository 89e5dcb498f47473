// A model's training step and its evaluation, each one Program over the same parameters.
#pragma once

#include "nn/adamw.h"
#include "nn/autocast.h"
#include "nn/model.h"

namespace tg {

struct ProgramOptions {
  std::int64_t batch = 12;  // rows of `context` tokens
  int threads = 0;          // 0 takes what the machine has
  bool verify = false;      // this and the next as in CompileOptions
  bool plan_only = false;
  Precision precision = Precision::full;
  bool predictions = false;  // EvaluationProgram gives the likeliest tokens too
};

// Forward with dropout, backward, clipping and AdamW's update.
class TrainingProgram {
 public:
  TrainingProgram(const Model& model, const AdamW& optimizer, const ProgramOptions& options,
                  std::uint64_t seed = 0 /* of dropout */);

  struct Result {
    float loss, grad_norm;
    std::int64_t skipped;         // steps so far whose gradient was not finite
    std::int64_t overflowed = 0;  // steps so far that a smaller loss scale would have saved
    float loss_scale = 1;         // for the next step
  };
  // tokens and targets i32 [batch, context], row-major.
  Result run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
             double learning_rate) {
    return result(start(tokens, targets, learning_rate));
  }
  // The same in two parts: on a GPU start() does not wait, and the next step may be started before the result
  // of this one is asked for.
  Pending start(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                double learning_rate);
  Result result(const Pending& step) const;
  Program& program() { return program_; }

 private:
  Graph graph_;
  Tensor tokens_, targets_, loss_;
  AdamW::Update update_;
  std::vector<Tensor> results_;
  Program program_;
};

// The mean loss of a batch, without dropout.
class EvaluationProgram {
 public:
  EvaluationProgram(const Model& model, const ProgramOptions& options);
  float run(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets) {
    return result(start(tokens, targets));
  }
  // As TrainingProgram's.
  Pending start(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets);
  float result(const Pending& batch) const { return static_cast<float>(batch.number(loss_)); }
  // The likeliest token after each place, i64 [batch, context]; only with ProgramOptions::predictions.
  Array predictions(const Pending& batch) const { return batch.fetch(predictions_); }
  Program& program() { return program_; }

 private:
  Graph graph_;
  Tensor tokens_, targets_, logits_, loss_, predictions_;
  std::vector<Tensor> results_;
  Program program_;
};

// What both programs will need, exactly, without taking any of it.
struct TrainingMemory {
  MemoryReport training, evaluation;
  std::size_t beside_parameters() const {
    return training.peak() - training.parameters + evaluation.peak() - evaluation.parameters;
  }
};
TrainingMemory plan_memory(const Model& model, const AdamW& optimizer, ProgramOptions options);

}  // namespace tg
