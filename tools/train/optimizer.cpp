#include "tools/train/options.h"

#include <tilegrad/nn/optimizers/optimizers.h>
#include "tools/train_report.h"

namespace tg {

void declare_optimizer_options(Args& args, OptimizerOptions& o) {
  args.option("optimizer", "NAME",
              "optimizer: sgd with momentum, adam (adamw without weight decay), adamw, or muon "
              "(orthogonalized momentum for matrices, adamw for the rest)",
              o.optimizer, {.choices = {"adamw", "adam", "sgd", "muon"}});
  args.option("lr", "X", "peak learning rate, reached after warm-up", o.lr,
              {.min = 0, .max = 1e3, .shown = "0.001; with --model 0.00005"});
  args.option(
      "schedule", "NAME",
      "learning rate schedule after warm-up; wsd: constant, then decay in the last --decay-part of all steps",
      o.schedule, {.choices = {"cosine", "linear", "constant", "wsd"}});
  args.option("min-lr", "X", "learning rate at the last step", o.min_lr,
              {.min = 0, .max = 1e3, .shown = "a tenth of --lr"});
  args.option("warmup", "N", "number of steps of linear warm-up", o.warmup, {.min = 0, .max = 1e9});
  args.option("decay-part", "P",
              "fraction of all steps in which the learning rate decays, with --schedule wsd", o.decay_part,
              {.min = 0, .max = 1});
  args.option("weight-decay", "X", "weight decay of matrices and embeddings", o.weight_decay,
              {.min = 0, .max = 100, .shown = "0.1; sgd, adam: 0"});
  args.option("momentum", "X", "momentum of --optimizer sgd and muon", o.momentum,
              {.min = 0, .max = 0.9999, .shown = "0.9; muon: 0.95"});
  args.flag("nesterov", "use Nesterov momentum, with --optimizer sgd", o.nesterov);
  args.option("clip", "X",
              "maximum global norm of the gradient, to which larger gradients are scaled down; 0: no limit",
              o.clip, {.min = 0, .max = 1e9});
  args.option("accumulate", "N", "number of batches per optimizer step, whose gradients are averaged",
              o.accumulate, {.min = 1, .max = 65536});
}

std::string settle_optimizer(const Args& args, OptimizerOptions& o, bool is_tuned) {
  const bool sgd = o.optimizer == "sgd", muon = o.optimizer == "muon";
  if (!args.given("lr") && is_tuned) o.lr = 5e-5;
  if (!args.given("min-lr")) o.min_lr = o.lr / 10;
  if (!args.given("weight-decay") && (sgd || o.optimizer == "adam")) o.weight_decay = 0;
  if (!args.given("momentum") && muon) o.momentum = 0.95;
  if (o.min_lr > o.lr) return "--min-lr " + short_number(o.min_lr) + " is above --lr " + short_number(o.lr);
  if (o.optimizer == "adam" && o.weight_decay != 0)
    return "--weight-decay requires --optimizer adamw, got adam";
  if (args.given("momentum") && !sgd && !muon) return "--momentum requires --optimizer sgd or muon";
  if (o.nesterov && !sgd) return "--nesterov requires --optimizer sgd";
  if (o.nesterov && o.momentum == 0) return "--nesterov requires a --momentum above 0";
  if (args.given("decay-part") && o.schedule != "wsd") return "--decay-part requires --schedule wsd";
  return {};
}

optim::Schedule schedule_of(const OptimizerOptions& o, std::int64_t steps) {
  return {o.lr, o.min_lr, o.warmup, steps, optim::Schedule::named(o.schedule), o.decay_part};
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerOptions& o,
                                                 const std::vector<Parameter>& parameters,
                                                 const std::optional<optim::LossScale>& scale,
                                                 nn::Precision precision,
                                                 std::shared_ptr<Communicator> ranks) {
  if (o.optimizer == "sgd")
    return std::make_unique<optim::Sgd>(
        parameters,
        optim::Sgd::Options{o.momentum, o.nesterov, o.weight_decay, o.clip, scale, {}, std::move(ranks)});
  const bool is_half = precision == nn::Precision::bf16 || precision == nn::Precision::f16;
  if (o.optimizer == "muon")
    return std::make_unique<optim::Muon>(
        parameters, optim::Muon::Options{.momentum = o.momentum,
                                         .weight_decay = o.weight_decay,
                                         .clip = o.clip,
                                         .products = is_half ? std::optional(bf16) : std::nullopt,
                                         .loss_scale = scale,
                                         .ranks = std::move(ranks)});
  return std::make_unique<optim::AdamW>(
      parameters,
      optim::AdamW::Options{
          .weight_decay = o.weight_decay, .clip = o.clip, .loss_scale = scale, .ranks = std::move(ranks)});
}

std::string description(const OptimizerOptions& o, std::int64_t steps) {
  if (steps < o.warmup)
    return o.optimizer + ", lr up to " + short_number(schedule_of(o, steps)(steps)) + " in the first " +
           std::to_string(steps) + " of " + counted(o.warmup, "step") + " of warm-up";
  std::string rate = "lr " + short_number(o.lr);
  if (o.schedule != "constant") rate += " → " + short_number(o.min_lr) + " (" + o.schedule + ")";
  return o.optimizer + ", " + rate + " after " + counted(o.warmup, "step") + " of warm-up";
}

}  // namespace tg
