// Calls functions of nn/: layers, models, optimizers, training and generation.
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/architecture.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/train/perplexity.h>
#include <tilegrad/train/training.h>
#include "tests/hostile/world.h"

namespace tg::hostile {

namespace {

using namespace tg::nn;
using I = std::int64_t;

I size(World& w) {
  return w.hostile() ? Draw<I>::of(w) : w.one_of<I>({1, 2, 4, 8});
}

Init init(World& w) {
  Init i = w.one_of({Init::zeros(), Init::ones(), Init::gpt2(), Init::pytorch()});
  if (w.chance(0.2)) i = w.chance(0.5) ? i.of_weight(Draw<I>::of(w)) : i.of_bias(Draw<I>::of(w));
  if (w.chance(0.3)) i.mean = Draw<double>::of(w), i.std = Draw<double>::of(w), i.bound = Draw<double>::of(w);
  return i;
}

// Creates a layer and calls it on ids or on rows of some width.
template <class Make>
Call layer(const std::string& name, Make make, bool of_ids = false) {
  return {name, [=](World& w) {
            const auto params = std::make_shared<Params>(w.below(3), w.hostile() ? Draw<DType>::of(w) : f32);
            const I width = size(w);
            w.trace += name + " of width " + std::to_string(width) + "\n";
            const Path at = Path(*params) / Draw<std::string>::of(w);
            const auto made = make(w, at, width);
            for (const Parameter& p : at.parameters()) w.keep(p);
            Tensor x = Draw<Tensor>::of(w);
            if (!w.hostile()) {
              x = of_ids ? w.graph.input("ids", {1, 1 + static_cast<I>(w.below(3))}, w.one_of({i64, i32}))
                         : w.graph.input("rows", {1, 1 + static_cast<I>(w.below(3)), width}, f32);
              w.keep(x);
            }
            std::optional<Autocast> autocast;
            if (w.chance(0.2))
              autocast.emplace(w.graph, w.one_of({Precision::full, Precision::bf16, Precision::f16}),
                               w.chance(0.5));
            (void)Autocast::has_low_precision_logits(x);
            std::optional<ContextParallel> parallel;
            if (w.chance(0.1)) parallel.emplace(w.graph, Draw<int>::of(w));
            if (ContextParallel::ranks(w.graph) > 1) w.keep(ContextParallel::positions(w.graph, size(w)));
            std::optional<KvCache> cache;
            std::optional<CacheCall> cached;
            nn::CallArgs call{.mode = w.chance(0.5) ? Mode::train : Mode::evaluate,
                              .recompute = w.chance(0.2)};
            if (w.chance(0.2)) call.residual = w.chance(0.5) ? x : Draw<Tensor>::of(w);
            if (w.chance(0.2)) {
              cache.emplace(size(w), size(w));
              cached.emplace(w.graph, *cache, size(w));
              call.cache = &*cached;
            }
            w.keep(made(x, call));
          }};
}

// Makes a Llama. Some settings are those of related architectures.
Llama relative(World& w) {
  const auto number = [&](double usual) { return w.hostile() ? Draw<double>::of(w) : usual; };
  Llama l{.head_width = w.chance(0.5) ? 0 : size(w), .eps = number(1e-5), .attention_bias = w.chance(0.3)};
  l.qk_norm = w.one_of<std::string>({"none", "head", "whole", "x"});
  l.norms = w.one_of<std::string>({"before", "after", "both"});
  l.activation = w.one_of<std::string>({"silu", "gelu", "gelu_tanh"});
  l.plus_one = w.chance(0.3);
  l.embedding_scale = number(2), l.attention_scale = number(0.5), l.logit_softcap = number(30);
  for (std::uint64_t n = w.below(3); n > 0; --n) l.windows.push_back(size(w)), l.rotated.push_back(n % 2);
  l.scaling = {.type = w.one_of<std::string>({"none", "linear", "llama3", "yarn", ""}),
               .factor = number(4),
               .first_context = number(8)};
  return l;
}

ModelConfig config(World& w) {
  ModelConfig c{
      .vocabulary = size(w), .context = size(w), .layers = size(w), .heads = size(w), .width = size(w)};
  if (!w.hostile() && c.heads > -100 && c.heads < 100)
    c.width = c.heads * 4, c.layers = 1 + static_cast<I>(w.below(2));
  c.layers %= 300;  // more would be valid, but exceed a program's time
  const std::vector<Architecture>& all = architectures();
  c.architecture = all[w.below(all.size())];
  if (w.chance(0.3)) c.architecture = relative(w);
  c.bias = w.chance(0.5), c.tied_head = w.chance(0.5);
  if (w.chance(0.2)) c.dropout = Draw<double>::of(w);
  if (w.chance(0.1)) c.std = Draw<double>::of(w);
  return c;
}

std::optional<optim::LossScale> loss_scale(World& w) {
  if (w.chance(0.8)) return {};
  return optim::LossScale{Draw<double>::of(w), Draw<double>::of(w), Draw<double>::of(w), Draw<I>::of(w)};
}

double setting(World& w, double normal) {
  return w.hostile() ? Draw<double>::of(w) : normal;
}

LowPrecisionCopies low_precision_copies(World& w) {
  return LowPrecisionCopies(w.hostile() ? Draw<DType>::of(w) : w.one_of({bf16, f16}));
}

optim::Optimizer::Decay decay(World& w) {
  if (!w.chance(0.2)) return {};
  return [x = setting(w, 0.1)](const Parameter&) { return x; };
}

std::unique_ptr<optim::Optimizer> optimizer(World& w, const std::vector<Parameter>& p) {
  switch (w.below(3)) {
    case 0:
      return std::make_unique<optim::AdamW>(p, optim::AdamW::Options{.beta1 = setting(w, 0.9),
                                                                     .beta2 = setting(w, 0.99),
                                                                     .eps = setting(w, 1e-8),
                                                                     .weight_decay = setting(w, 0.1),
                                                                     .clip = setting(w, 1),
                                                                     .loss_scale = loss_scale(w),
                                                                     .decay = decay(w)});
    case 1:
      return std::make_unique<optim::Sgd>(p, optim::Sgd::Options{.momentum = setting(w, 0.9),
                                                                 .nesterov = w.chance(0.3),
                                                                 .weight_decay = setting(w, 0),
                                                                 .clip = setting(w, 1),
                                                                 .loss_scale = loss_scale(w),
                                                                 .decay = decay(w)});
    default:
      return std::make_unique<optim::Muon>(
          p, optim::Muon::Options{.momentum = setting(w, 0.9),
                                  .weight_decay = setting(w, 0),
                                  .clip = setting(w, 1),
                                  .beta1 = setting(w, 0.9),
                                  .beta2 = setting(w, 0.99),
                                  .eps = setting(w, 1e-8),
                                  .iterations = w.hostile() ? Draw<int>::of(w) % 50 : 2,
                                  .products = w.chance(0.3) ? std::optional(bf16) : std::nullopt,
                                  .loss_scale = loss_scale(w),
                                  .decay = decay(w)});
  }
}

// With any accepted options of an optimizer, weights must stay finite, because non-finite steps are skipped.
void expect_finite(const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters) {
    const Array a = p.read();
    for (std::int64_t i = 0; i < a.numel(); ++i)
      if (!std::isfinite(a.at(i))) throw std::logic_error("training made " + p.name() + " not finite");
  }
}

std::vector<std::int32_t> ids(World& w, I n) {
  std::vector<std::int32_t> all(
      static_cast<std::size_t>(w.hostile() || n > 1 << 16 ? static_cast<I>(w.below(9)) : n));
  for (std::int32_t& id : all) id = w.hostile() ? -1 : static_cast<std::int32_t>(w.below(2));
  return all;
}

train::ProgramOptions program_options(World& w) {
  return {.batch = w.hostile() ? Draw<I>::of(w) : 2,
          .threads = Draw<int>::of(w),
          .verify = w.chance(0.3),
          .plan_only = w.chance(0.1),
          .precision = w.one_of({Precision::full, Precision::bf16, Precision::f16}),
          .predictions = w.chance(0.5),
          .accumulate = w.hostile() ? Draw<I>::of(w) : 1 + static_cast<I>(w.below(2)),
          .loss_chunks = w.hostile() ? Draw<I>::of(w) : static_cast<I>(w.below(4)),
          .recompute = w.chance(0.3),
          .memory_budget = w.hostile() ? static_cast<std::size_t>(Draw<I>::of(w)) : 0};
}

void train_model(World& w) {
  Params params(1);
  const ModelConfig c = config(w);
  w.trace += "train " + c.text() + "\n";
  const Model model(params, c);
  const auto o = optimizer(w, w.hostile() ? Draw<std::vector<Parameter>>::of(w) : params.all());
  train::ProgramOptions options = program_options(w);
  if (w.chance(0.3)) options = train::sharing_memory(model, options);
  train::TrainingProgram step(model, *o, options, w.below(3));
  const I n = numel({options.batch, options.accumulate, c.context});
  if (w.hostile()) step.set_step(Draw<I>::of(w));
  const double rate = setting(w, 1e-3);
  for (int k = 0; k < 2; ++k) step.run(ids(w, n), ids(w, n), rate);
  step.gather_weights();
  if (rate <= 1) expect_finite(params.all());
  std::vector<Array> state;
  for (const Parameter& p : o->whole_state()) state.push_back(w.hostile() ? Draw<Array>::of(w) : p.read());
  o->gather_state(o->whole_state());
  o->set_state(state);
  o->zeros_like_shard(w.hostile() ? static_cast<std::size_t>(Draw<I>::of(w)) : 0, "x");
  (void)o->shards();
  const train::TrainingMemory planned = train::plan_memory(model, *o, options);
  (void)planned.without_parameters(), planned.require(options.memory_budget), (void)step.loss_chunks();
  step.first_bad_node(ids(w, n), ids(w, n), 0);
  train::EvaluationProgram evaluation(model, options);
  const Pending batch =
      evaluation.start(ids(w, options.batch * c.context), ids(w, options.batch * c.context));
  evaluation.result(batch), (void)evaluation.own_targets(ids(w, options.batch * c.context));
  evaluation.predictions(batch);
  const train::Perplexity p = train::perplexity(model, ids(w, static_cast<I>(w.below(40))),
                                                {.stride = w.hostile() ? Draw<I>::of(w) : 0,
                                                 .batch = options.batch,
                                                 .threads = options.threads,
                                                 .precision = options.precision,
                                                 .progress = [&](I, I) { return w.chance(0.9); }});
  (void)p.loss(), (void)p.value();
  const auto needed = [&](I size) { return w.hostile() ? w.below(1000) : static_cast<std::size_t>(size); };
  (void)train::largest_batch(w.hostile() ? Draw<I>::of(w) : 100, w.below(200), needed);
}

Sampling sampling(World& w) {
  return {setting(w, 1), w.hostile() ? Draw<I>::of(w) : 0, setting(w, 1)};
}

void generate(World& w) {
  Params params(1);
  const ModelConfig c = config(w);
  w.trace += "generate " + c.text() + "\n";
  const Model model(params, c);
  Generator g(model, {.threads = Draw<int>::of(w), .cache = w.chance(0.7)});
  g.next(ids(w, 1));
  attention_maps(model, ids(w, 1), Draw<int>::of(w));
  std::vector<std::int32_t> text = ids(w, 1 + static_cast<I>(w.below(3)));
  if (w.chance(0.3)) g.forget();
  g.extend(text, w.hostile() ? -1 : 4, sampling(w), w.below(3));
}

// Calls f. If it throws Error, the program continues.
void attempt(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error&) {
  }
}

void schedule(World& w) {
  const auto few = [&](I ordinary) {
    return static_cast<std::int32_t>(w.hostile() ? Draw<I>::of(w) % 100
                                                 : 1 + static_cast<I>(w.below(ordinary)));
  };
  Scheduler s(
      {.pages = few(20), .page_size = few(8), .slots = size(w), .chunk = size(w), .host_pages = few(10)});
  std::vector<Scheduler::Id> ids;
  const auto id = [&] {
    return ids.empty() || w.hostile() ? Draw<std::uint64_t>::of(w) : ids[w.below(ids.size())];
  };
  for (int n = 0; n < 60; ++n)
    attempt([&] {
      switch (w.below(10)) {
        case 0:
          ids.push_back(s.add(Draw<std::vector<int>>::of(w), w.hostile() ? Draw<I>::of(w) : 20));
          break;
        case 1:
          ids.push_back(
              s.fork(id(), w.chance(0.5) ? Scheduler::ForkOrder::last : Scheduler::ForkOrder::of_parent));
          break;
        case 2:
          s.remove(id());
          break;
        case 3:
          s.append(id(), Draw<int>::of(w));
          break;
        case 4:
          (void)s.tokens(id()).size(), (void)s.is_running(id()), (void)s.table(id()).length();
          break;
        case 5:
          s.done({id(), Draw<I>::of(w), Draw<I>::of(w)});
          break;
        case 6:
          if (w.chance(0.2)) s.forget();
          if (w.chance(0.1)) s.start_again();
          (void)s.pool().free(), (void)s.waiting(), (void)s.running(), (void)s.cached(), (void)s.held();
          (void)s.preemptions(), (void)s.found();
          break;
        case 7:
          w.chance(0.5) ? s.expect(id()) : s.read_again(id());
          break;
        default: {
          const Scheduler::Plan plan = s.plan();
          (void)plan.is_empty();
          for (const auto* parts : {&plan.single, &plan.several})
            for (const auto& part : *parts) s.done(part);
        }
      }
    });
}

void serve(World& w) {
  Params params(1);
  ModelConfig c = config(w);
  if (!w.hostile()) c.context = 16;
  w.trace += "serve " + c.text() + "\n";
  const Model model(params, c);
  const auto few = [&] { return w.hostile() ? Draw<I>::of(w) : 1 + static_cast<I>(w.below(20)); };
  // More slots or tokens would be valid, but exceed a program's memory.
  Engine engine(model, {.slots = size(w) % 1000,
                        .cache_tokens = w.chance(0.5) ? 0 : few() % 10000,
                        .page_size = few(),
                        .chunk = few(),
                        .host_tokens = w.chance(0.5) ? 0 : few(),
                        .threads = Draw<int>::of(w),
                        .precision = w.one_of({Precision::full, Precision::bf16, Precision::f16}),
                        .ahead = w.chance(0.5)});
  std::vector<Engine::Handle> handles;
  const auto handle = [&] {
    return handles.empty() || w.hostile() ? Draw<std::uint64_t>::of(w) : handles[w.below(handles.size())];
  };
  const auto tokens = [&] { return w.hostile() ? Draw<I>::of(w) : static_cast<I>(w.below(4)); };
  const auto ends = [&] {
    std::vector<std::int32_t> some(w.chance(0.2) ? 1 + w.below(2) : 0);
    for (std::int32_t& token : some) token = Draw<int>::of(w);
    return some;
  };
  std::function<void()> anything;
  const auto report = [&](const Engine::Token& t) {
    (void)t.logits.size();
    if (w.chance(0.2)) anything();
    if (w.hostile()) throw Error("[user] on purpose");
    return w.chance(0.9);
  };
  anything = [&] {
    switch (w.below(12)) {
      case 0:
      case 1:
        handles.push_back(engine.add(Engine::Request{.prompt = ids(w, 1 + static_cast<I>(w.below(5))),
                                                     .tokens = tokens(),
                                                     .sampling = sampling(w),
                                                     .seed = w.below(3),
                                                     .ends = ends(),
                                                     .report = report}));
        break;
      case 2:
        handles.push_back(engine.search({.prompt = ids(w, 1 + static_cast<I>(w.below(5))),
                                         .tokens = tokens(),
                                         .beams = size(w),
                                         .ends = ends(),
                                         .report = [&](const auto&) { anything(); }}));
        break;
      case 3:
        handles.push_back(engine.fork(handle(), w.below(3), report));
        break;
      case 4:
        engine.cancel(handle());
        break;
      case 5:
        if (w.chance(0.3)) engine.forget();
        (void)engine.sequences(), (void)engine.scheduler().running(), (void)engine.cache().bytes(),
            (void)engine.arena().bytes();
        (void)engine.vocabulary(), (void)engine.run_seconds();
        break;
      default:
        engine.step();
    }
  };
  for (int n = 0; n < 60; ++n) attempt(anything);
}

void search(World& w) {
  BeamSearch s(size(w), size(w), w.chance(0.5) ? std::vector<std::int32_t>{1} : std::vector<std::int32_t>{});
  for (int n = 0; n < 10; ++n)
    attempt([&] {
      std::vector<float> logits(w.below(5));
      for (float& x : logits) x = Draw<float>::of(w);
      s.offer(w.hostile() ? Draw<std::uint64_t>::of(w) : w.below(s.live().size()), logits);
      if (s.complete() || w.hostile()) (void)s.advance().size(), (void)s.results().size();
    });
}

void model_config(World& w) {
  ModelConfig c = config(w);
  w.trace += c.text() + "\n";
  if (w.hostile()) const ModelConfig taken = std::move(c);
  (void)c.text().size();
  Architecture& a = c.architecture;
  w.trace += a.name() + a.title() + a.text(c) + "\n";
  (void)c.linear_init(), (void)c.residual_init(), (void)c.embedding_init();
  (void)settings_of(c).size(), (void)a.settings().size();
  a.complete(c), a.check(c), c.check(), (void)c.parameters();
  c.each_parameter([](const std::string&, const Shape&) {});
}

// Calls parts of a model with tokens of any shape and graph.
void model_parts(World& w) {
  Params params(1);
  const ModelConfig c = config(w);
  w.trace += "parts of " + c.text() + "\n";
  Model model(params, c);
  if (w.hostile()) const Model taken = std::move(model);
  const TensorArg tokens =
      w.chance(0.5) ? Draw<TensorArg>::of(w) : TensorArg(w.graph.input("tokens", {1, 2}, i32));
  const Tensor x = model.features(tokens);
  w.keep(x), w.keep(model.head(w.chance(0.5) ? TensorArg(x) : Draw<TensorArg>::of(w))), w.keep(model(tokens));
  w.keep(model.loss(x, Draw<TensorArg>::of(w), {.chunk_rows = Draw<I>::of(w), .unit_rows = Draw<I>::of(w)}));
}

LoraOptions lora_options(World& w) {
  LoraOptions o{.rank = size(w), .alpha = setting(w, 16), .rank_stabilized = w.chance(0.3)};
  o.dropout = setting(w, 0.1);
  if (w.chance(0.3))
    o.targets = {w.one_of<std::string>({"q_proj", "c_attn", "c_proj", "kv_b_proj", "lm_head", ""})};
  if (w.chance(0.2)) o.ranks["o_proj"] = size(w);
  if (w.chance(0.2)) o.alphas[Draw<std::string>::of(w)] = setting(w, 3);
  if (w.hostile()) o.dtype = Draw<DType>::of(w);
  return o;
}

// Returns the module of a layer. Hostile modules have any name, first row and size. So they may contain
// several layers.
ModuleRows module_rows(World& w, const LinearSlot& linear) {
  if (!w.hostile()) return {linear.path, 0, linear.out};
  return {w.one_of<std::string>({"all", "", linear.path}), w.chance(0.5) ? 0 : Draw<I>::of(w),
          w.chance(0.5) ? linear.out : Draw<I>::of(w)};
}

void lora(World& w) {
  Params params(1, w.one_of({f32, bf16}));
  const ModelConfig c = config(w);
  w.trace += "lora on " + c.text() + "\n";
  Model model(params, c);
  for (int n = 0; n < 4; ++n)
    attempt([&] {
      switch (w.below(5)) {
        case 0:
          (void)lora_modules(model.linears(), lora_options(w)).size();
          break;
        case 1:
          add_lora(model, lora_options(w), [&](const LinearSlot& l) { return module_rows(w, l); });
          break;
        case 2:
          add_lora(model, lora_options(w));
          break;
        case 3:
          merge_lora(model);
          break;
        default:
          remove_lora(model);
      }
    });
  if (const Lora* added = model.lora())
    for (const Parameter& p : added->parameters()) w.keep(p);
  w.keep(model(w.graph.input("tokens", {1, 2}, i32), {.mode = w.chance(0.5) ? Mode::train : Mode::evaluate}));
}

void low_rank(World& w) {
  Params params(1);
  const Path at = Path(params) / Draw<std::string>::of(w);
  const auto weight = [&] { return w.chance(0.2) ? Weight() : Weight(Draw<Parameter>::of(w)); };
  LowRank adapter{.a = weight(), .b = weight(), .first_row = size(w), .scale = setting(w, 2)};
  adapter.dropout = setting(w, 0);
  const Linear linear(at, size(w), size(w));
  (void)linear.adapter();
  (void)at.add_linear(weight(), size(w), size(w), w.chance(0.5));
  w.trace += "LowRank\n";
  *at.linears()[0].adapter = adapter;
  (void)params.linears().size();
  const TensorArg x = Draw<TensorArg>::of(w);
  w.on_call(w.trace);
  attempt([&] { w.keep(adapter.rows_of_b(x, size(w))); });
  attempt([&] { w.keep(adapter.added_to(Draw<Tensor>::of(w), x, Mode::train)); });
  w.keep(linear(x));
}

// Makes a LanguageModel from functions. Some functions may be missing.
void language_model(World& w) {
  LanguageModel m{.context = size(w), .parameters = Draw<std::vector<Parameter>>::of(w)};
  const auto f = [](TensorArg x) { return x.tensor() * 2; };
  if (w.chance(0.7)) m.features = [=](TensorArg tokens, const nn::CallArgs&) { return f(tokens); };
  if (w.chance(0.5)) m.head = f;
  w.trace += "LanguageModel\n";
  w.on_call(w.trace);
  (void)m.device(), (void)m.count();
  w.keep(m.features_of(Draw<TensorArg>::of(w))), w.keep(m.head_of(Draw<TensorArg>::of(w)));
  w.keep(m.logits(Draw<TensorArg>::of(w)));
  if (w.chance(0.5)) m.loss = [=](TensorArg x, TensorArg, const LossOptions&) { return f(x); };
  w.keep(m.loss_of(Draw<TensorArg>::of(w), Draw<TensorArg>::of(w),
                   {.chunk_rows = Draw<I>::of(w), .unit_rows = Draw<I>::of(w)}));
  Generator g(m, {.threads = Draw<int>::of(w), .cache = w.chance(0.7)});
  (void)g.next(ids(w, 1));
}

}  // namespace

std::vector<Call> model_calls() {
  return {
      layer("Linear",
            [](World& w, const Path& at, I width) {
              return Linear(at, width, size(w), {.bias = w.chance(0.5), .init = init(w)});
            }),
      layer(
          "Embedding",
          [](World& w, const Path& at, I width) { return Embedding(at, size(w), width, init(w)); }, true),
      layer(
          "PositionEmbedding",
          [](World& w, const Path& at, I width) { return PositionEmbedding(at, size(w), width, init(w)); },
          true),
      layer("LayerNorm", [](World& w, const Path& at,
                            I width) { return LayerNorm(at, width, w.chance(0.5), setting(w, 1e-5)); }),
      layer("RmsNorm",
            [](World& w, const Path& at, I width) { return RmsNorm(at, width, setting(w, 1e-6)); }),
      layer("Mlp", [](World& w, const Path& at, I width) { return Mlp(at, width, {.bias = w.chance(0.5)}); }),
      layer("GatedMlp", [](World& w, const Path& at, I width) { return GatedMlp(at, width, size(w)); }),
      layer("SelfAttention",
            [](World& w, const Path& at, I width) {
              return SelfAttention(at, width, size(w), {.dropout = w.chance(0.8) ? 0 : Draw<double>::of(w)});
            }),
      layer("GroupedAttention",
            [](World& w, const Path& at, I width) {
              return GroupedAttention(at, width, size(w),
                                      {.key_heads = w.chance(0.5) ? 0 : size(w),
                                       .head_width = w.chance(0.5) ? 0 : size(w),
                                       .rotate = w.chance(0.5),
                                       .rope = Draw<RopeOptions>::of(w)});
            }),
      layer("LatentAttention",
            [](World& w, const Path& at, I width) {
              return LatentAttention(at, width, size(w),
                                     {.latent = size(w),
                                      .query_latent = w.chance(0.5) ? 0 : size(w),
                                      .rope_width = size(w),
                                      .theta = setting(w, 1e4),
                                      .eps = setting(w, 1e-6)});
            }),
      layer(
          "Model", [](World& w, const Path& at, I) { return Model(at, config(w)); }, true),
      {"ModelConfig", model_config},
      {"add_lora", lora},
      {"LowRank", low_rank},
      {"merged_weight",
       [](World& w) {
         const Array weight = Draw<Array>::of(w), b = Draw<Array>::of(w), a = Draw<Array>::of(w);
         (void)merged_weight(weight, b, a, Draw<double>::of(w), w.chance(0.5) ? f32 : Draw<DType>::of(w))
             .bytes();
       }},
      {"the parts of a Model", model_parts},
      {"LanguageModel", language_model},
      {"Layer",
       [](World& w) {
         Layer layer = w.chance(0.5) ? Layer() : Layer("twice", [](TensorArg x) { return x.tensor() * 2; });
         if (w.hostile()) const Layer taken = std::move(layer);
         if (!layer.is_empty() || w.chance(0.2)) w.keep(layer(Draw<TensorArg>::of(w)));
       }},
      {"Embedding::head",
       [](World& w) {
         Params params(1);
         const Embedding table(Path(params) / Draw<std::string>::of(w), size(w), size(w), init(w));
         w.keep(table.head()(Draw<TensorArg>::of(w)));
         if (const auto p = table.head().as_matmul(Draw<TensorArg>::of(w))) w.keep(p->x), w.keep(p->w);
       }},
      {"Weight",
       [](World& w) {
         const Weight weight = w.hostile() ? Weight() : Weight(Draw<Parameter>::of(w));
         w.keep(weight.parameter());
         const TensorArg x = Draw<TensorArg>::of(w);
         w.keep(w.chance(0.5) ? weight.tensor(x) : weight.stored(x));
       }},
      {"Path",
       [](World& w) {
         Params params = w.chance(0.5) ? Params::counting() : Params(1);
         const Path at = Path(params) / Draw<std::string>::of(w) / Draw<int>::of(w);
         const Weight weight = at.create(Draw<std::string>::of(w), Draw<Dims>::of(w), init(w));
         at.setting(w.hostile() ? Weight(Draw<Parameter>::of(w)) : weight, Draw<std::string>::of(w),
                    Draw<double>::of(w));
         (void)at.refusal(Draw<std::string>::of(w), at.text() + at.name()).size();
         (void)params.find(Draw<std::string>::of(w));
         (void)params.bytes();
         w.keep(weight.tensor(Draw<TensorArg>::of(w)));
       }},
      {"Params::unset",
       [](World& w) {
         Params params = Params::unset(Draw<DType>::of(w), Draw<Device>::of(w));
         const Parameter p = params.create(Draw<std::string>::of(w), Draw<Dims>::of(w), init(w));
         Parameter(p).write_bytes(0, std::vector<std::byte>(p.bytes()));
         w.keep(p);
         const std::vector<std::byte> some(w.below(9));
         Parameter(p).write_bytes(static_cast<std::size_t>(Draw<I>::of(w)), some);
       }},
      {"Params::create",
       [](World& w) {
         Params params(0, Draw<DType>::of(w));
         for (int n = 0; n < 2; ++n)
           w.keep(params.create(Draw<std::string>::of(w), Draw<Dims>::of(w), init(w)));
       }},
      {"minimize",
       [](World& w) {
         const std::vector<Parameter> p = Draw<std::vector<Parameter>>::of(w);
         w.trace += "minimize\n";
         const auto o = optimizer(w, p);
         const Tensor loss = w.chance(0.5) ? Draw<Tensor>::of(w) : sum(Draw<Tensor>::of(w)).to(f32);
         std::vector<Parameter> copies;
         if (w.chance(0.3))
           copies = w.chance(0.5) ? Draw<std::vector<Parameter>>::of(w)
                                  : low_precision_copies(w).of(o->parameters());
         const auto other = optimizer(w, w.chance(0.5) ? p : Draw<std::vector<Parameter>>::of(w));
         std::vector<Assign> assign;
         if (w.chance(0.3)) assign = other->minimize(loss).assign;
         const auto update = w.chance(0.5)
                                 ? o->minimize(loss, copies)
                                 : o->update(loss, o->differentiate(loss), {.reading = {.copies = copies}});
         const std::vector<Tensor> fetch{loss, update.grad_norm};
         assign.insert(assign.end(), update.assign.begin(), update.assign.end());
         Program step =
             compile(w.graph, fetch, {.assign = assign, .plan_only = w.graph.nodes().size() > 4000});
         w.keep(step);
         for (const Parameter& s : o->state()) w.keep(s);
       }},
      {"LowPrecisionCopies",
       [](World& w) {
         w.trace += "LowPrecisionCopies\n";
         LowPrecisionCopies copies = low_precision_copies(w);
         const std::vector<Parameter> p = Draw<std::vector<Parameter>>::of(w);
         for (int n = 0; n < 2; ++n)
           for (const Parameter& x : p)
             w.keep(copies.tensor(x, Draw<Graph&>::of(w), std::source_location::current()));
         for (const Parameter& x : copies.of(p)) w.keep(x);
         (void)copies.bytes();
         (void)low_precision_dtype(w.one_of({Precision::full, Precision::bf16, Precision::f16}));
       }},
      {"training", train_model},
      {"generation", generate},
      {"Scheduler", schedule},
      {"Engine", serve},
      {"BeamSearch", search},
      {"dropped",
       [](World& w) {
         w.keep(dropped(Draw<TensorArg>::of(w), Draw<double>::of(w),
                        w.chance(0.5) ? Mode::train : Mode::evaluate));
       }},
      {"sample_token",
       [](World& w) {
         std::vector<float> logits(w.below(5));
         for (float& x : logits) x = Draw<float>::of(w);
         const Sampling drawn{Draw<double>::of(w), Draw<I>::of(w), Draw<double>::of(w)};
         sample_token(logits, drawn, Draw<double>::of(w));
         (void)sampling_draw(Draw<std::uint64_t>::of(w), Draw<std::uint64_t>::of(w));
         check_sampling(drawn);
       }},
      {"Schedule",
       [](World& w) {
         const optim::Schedule s{
             Draw<double>::of(w),
             Draw<double>::of(w),
             Draw<I>::of(w),
             Draw<I>::of(w),
             w.chance(0.5) ? optim::Schedule::Kind::cosine : optim::Schedule::Kind::warmup_stable_decay,
             Draw<double>::of(w)};
         (void)s(Draw<I>::of(w));
         optim::Schedule::named(Draw<std::string>::of(w));
       }},
      {"which parameters",
       [](World& w) {
         const Parameter p = Draw<Parameter>::of(w);
         (void)optim::Muon::hidden_matrix(p);
         w.keep(p.part(Draw<I>::of(w), Draw<I>::of(w)));
         (void)optim::Optimizer::decay_of_matrices(Draw<double>::of(w))(p);
       }},
      {"names",
       [](World& w) {
         w.chance(0.5) ? (void)precision_named(Draw<std::string>::of(w)) : (void)architecture_named("x");
       }},
      {"activation_named", [](World& w) { (void)activation_named(Draw<std::string>::of(w)); }},
      {"RopeScaling",
       [](World& w) {
         const RopeScaling s{.type = w.one_of<std::string>({"none", "linear", "llama3", "yarn", "longrope"}),
                             .factor = Draw<double>::of(w),
                             .first_context = Draw<double>::of(w),
                             .beta_fast = Draw<double>::of(w),
                             .short_factors = {2.0, Draw<double>::of(w)},
                             .long_factors = {Draw<double>::of(w), 3.0}};
         if (!s.is_none() && w.chance(0.5)) s.check(w.chance(0.5) ? 4 : size(w));
         (void)s.short_length(Draw<I>::of(w));
         (void)s.frequencies(w.chance(0.5) ? 4 : size(w), Draw<double>::of(w), Draw<I>::of(w)).size();
       }},
      call("orthogonalized", static_cast<Tensor (*)(const Tensor&, int)>(
                                 +[](const Tensor& x, int n) { return optim::orthogonalized(x, n % 20); })),
      {"PagePool",
       [](World& w) {
         const auto few = [&] { return static_cast<std::int32_t>(Draw<I>::of(w) % 50); };
         PagePool pool(few(), few());
         const auto text = Draw<std::vector<int>>::of(w);
         PageTable table = pool.open(text);
         std::vector<PageCopy> copies;
         (void)table.reserve(Draw<I>::of(w), copies);
         table.append(text);
         PageTable other = table.fork();
         if (other.reserve(few(), copies)) other.append(Draw<std::vector<int>>::of(w));
         if (w.chance(0.3)) pool.forget();
         table = pool.open(text);
         (void)table.length(), (void)table.pages().size(), (void)other.row(Draw<I>::of(w));
         (void)pool.free(), (void)pool.pages(), (void)pool.page_size(), (void)pool.holders(few());
       }},
      {"KvCache",
       [](World& w) {
         const auto dtype = w.chance(0.3) ? std::optional(Draw<DType>::of(w)) : std::nullopt;
         KvCache cache(size(w), size(w), Draw<Device>::of(w), dtype);
         Graph& graph = Draw<Graph&>::of(w);
         const bool in_pages = w.chance(0.5);
         CacheCall call = in_pages ? CacheCall(graph, cache, {size(w), size(w), size(w), size(w)})
                                   : CacheCall(graph, cache, size(w));
         w.keep(call.positions()), w.keep(call.lengths());
         w.keep(in_pages ? call.rows() : call.cached());
         if (in_pages) w.keep(call.table());
         const auto name = Draw<std::string>::of(w);
         const TensorArg q = Draw<TensorArg>::of(w), k = Draw<TensorArg>::of(w);
         w.keep(w.chance(0.5) ? call.attend(name, q, k, Draw<TensorArg>::of(w))
                              : call.attend(name, q, k, Draw<I>::of(w)));
         (void)cache.bytes(), (void)cache.page_size(), (void)call.assign().size();
         call.check(Draw<TensorArg>::of(w));
       }},
  };
}

}  // namespace tg::hostile
