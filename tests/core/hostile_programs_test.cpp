// Tests misuse of programs, models, gradients and user-defined ops. Every call must return a value or throw a
// tg::Error with a description of the mistake.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/hostile_calls.h"

namespace {

using namespace tg;
using namespace tg::testing;
using Call = MistakenCall;

constexpr std::int64_t huge = std::int64_t{1} << 62, last = std::numeric_limits<std::int64_t>::max();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Programs

TEST_F(Hostile, AssignedTwiceIsRefused) {
  const Parameter p("p", Array({5}, f32));
  const Tensor w = g.param(p);
  expect_error<Error>(
      [&] {
        compile(g, {}, {.assign = {{p, w + 1}, {p, w * 2}}});
      },
      {"[compile] p is assigned twice: add", "mul", "hostile_programs_test.cpp"});
  for (const auto& make : std::vector<std::function<void()>>{[&] {
                                                               optim::AdamW({p, p});
                                                             },
                                                             [&] {
                                                               optim::Sgd({p, p}, {});
                                                             },
                                                             [&] {
                                                               optim::Muon({p, p});
                                                             }})
    expect_error<Error>(make, {"[optimizer] parameter p is given twice"});
  expect_error<DTypeError>([&] { optim::AdamW({Parameter("n", Array({2}, i32))}); },
                           {"[optimizer] parameter n is i32"});
}

TEST_F(Hostile, FeedingAnInputThatTheProgramDoesNotReadIsRefused) {
  const Parameter p("p", Array({5}, f32));
  const Tensor loss = sum(g.param(p) * x);
  const auto update = optim::Sgd({p}, {}).minimize(loss);
  const Array values = Array::of<float>({1, 2, 3, 4, 5});
  Program forgotten = compile(g, {loss});
  expect_error<Error>(
      [&] {
        forgotten.run({{x, values}, {update.learning_rate, 0.1}});
      },
      {"[feed] the program does not read input learning_rate f32 []", "assign"});
  expect_error<Error>(
      [&] {
        compile(g, {loss, update.skipped});
      },
      {"[compile]", "optimizer.skipped", "not among the assignments"});
  Program step = compile(g, {loss}, {.assign = update.assign});
  step.run({{x, values}, {update.learning_rate, 0.1}});
  EXPECT_NE(p.read().at(4), 0);
  EXPECT_EQ(eval(x * 2, {{x, values}, {update.learning_rate, 0.1}}).at(0), 2);  // eval ignores it
}

TEST_F(Hostile, ArraysAreFedInTheShapeOfTheInput) {
  const Tensor m = g.input("m", {8, 4});
  Program p = compile(g, {m * 2});
  expect_error<ShapeError>(
      [&] {
        p.feed({m, Array({4, 8}, f32)});
      },
      {"[feed] input m is f32 [8, 4], got an Array of shape [4, 8]", "hostile_programs_test.cpp"});
  p.run({{m, std::vector<float>(32)}});  // a vector has no shape
}

TEST(HostileTraining, NeedsABatch) {
  nn::Params params;
  const nn::Model model(params, {.vocabulary = 8, .context = 4, .layers = 1, .heads = 1, .width = 4});
  const optim::AdamW adamw(params.all());
  expect_error<ShapeError>([&] { train::TrainingProgram(model, adamw, {.batch = 0}); },
                           {"[training] batch is out of range: got 0"});
  expect_error<ShapeError>([&] { train::EvaluationProgram(model, {.batch = -1}); },
                           {"[training] batch is out of range: got -1"});
  train::TrainingProgram program(model, adamw, {.batch = 1});
  expect_error<Error>([&] { program.set_step(-1); }, {"[training]"});
  optim::AdamW gone(params.all());
  const optim::AdamW taken = std::move(gone);
  Graph g;
  expect_error<Error>([&] { gone.minimize(sum(g.param(params.all()[0]))); },
                      {"[optimizer] transformer.wte.weight gets no update"});
  expect_error<GradientError>([&] { taken.minimize(sum(g.input("x", {2}))); },
                              {"[optimizer] the loss sum f32 [] depends on none of the parameters"});
}

struct HostileModel : ::testing::Test {
  nn::Params params;
  nn::Model model{params, {.vocabulary = 8, .context = 8, .layers = 1, .heads = 2, .width = 8}};
  Graph g;
  Tensor tokens = g.input("tokens", {1, 4}, i32);
};

TEST_F(HostileModel, NodesOfTheHeadHaveTheLineOfTheCall) {
  const Tensor logits = model(tokens);
  const std::string line = "(hostile_programs_test.cpp:" + std::to_string(__LINE__ - 1) + ")";
  EXPECT_EQ(at_line(g.node_of(logits.id()).where), line);
  expect_error<GradientError>([&] { gradients(logits, {g.param(params.all()[0])}); }, {line});
}

TEST_F(HostileModel, ProgramsOfAModelNameTheLineThatCreatedThem) {
  const optim::AdamW adamw(params.all());
  const int first = __LINE__ + 1;
  nn::Generator generator(model);
  train::TrainingProgram training(model, adamw, {.batch = 1});
  train::EvaluationProgram evaluation(model, {.batch = 1});
  const auto line = [&](int below) {
    return "(hostile_programs_test.cpp:" + std::to_string(first + below) + ")";
  };
  const std::vector<std::int32_t> right(8, 0), wrong(8, 99);
  std::vector<std::int32_t> text{1, 99};
  const std::string refusal = "[transformer.wte/embedding] index 99 at position ";
  expect_error<Error>([&] { generator.extend(text, 1, {}, 0); }, {refusal + "1", line(0)});
  expect_error<Error>([&] { training.run(wrong, right, 1e-3); }, {refusal + "0", line(1)});
  expect_error<Error>([&] { training.run(right, wrong, 1e-3); }, {"[cross_entropy] index 99", line(1)});
  expect_error<Error>([&] { training.run({1}, {1}, 1e-3); }, {"[feed] input tokens", line(1)});
  expect_error<Error>([&] { evaluation.run(wrong, right); }, {refusal + "0", line(2)});
}

TEST_F(HostileModel, ACacheOfADifferentLengthOrBatchIsRefusedByTheCall) {
  nn::KvCache one(1, 8), two(2, 8);
  nn::CacheCall shorter(g, one, 2), more(g, two, 4);
  expect_error<ShapeError>([&] { model(tokens, {.cache = &shorter}); },
                           {"/kv_cache] the call is for 2 tokens in each of 1 sequences, got i32 [1, 4]",
                            "hostile_programs_test.cpp"});
  expect_error<ShapeError>([&] { model(tokens, {.cache = &more}); },
                           {"4 tokens in each of 2 sequences", "hostile_programs_test.cpp"});
  const nn::GroupedAttention layer(nn::Path(params) / "layer", 8, 2);
  expect_error<ShapeError>(
      [&] {
        layer(g.input("x", {1, 4, 8}), {.cache = &more});
      },
      {"[layer/kv_cache]", "got f32 [1, 4, 8]", "hostile_programs_test.cpp"});
}

TEST_F(HostileModel, RowsThatDoNotFitTheCacheOrTheCallAreRefused) {
  for (const bool in_pages : {false, true}) {
    Graph graph;
    nn::KvCache cache(2, 4);
    nn::CacheCall call =
        in_pages ? nn::CacheCall(graph, cache, {.singles = 3, .groups = 1, .length = 3, .room = 2})
                 : nn::CacheCall(graph, cache, 3);
    const auto rows = [&](Shape shape, DType dtype = f32) {
      // Six tokens have the shape [2, heads, 3, n]. But in a paged cache, each token is a row.
      if (in_pages && shape.size() == 4) shape[0] *= 3, shape[2] -= 2;
      return graph.input("rows", shape, dtype);
    };
    const Tensor q = rows({2, 2, 3, 8}), k = rows({2, 1, 3, 8}), v = rows({2, 1, 3, 6});
    const std::string expected = in_pages ? " [6, heads, 1, n], got" : " [2, heads, 3, n], got";
    EXPECT_EQ(call.attend("a", q, k, v).shape(), (in_pages ? Shape{6, 2, 1, 6} : Shape{2, 2, 3, 6}));
    EXPECT_EQ(call.attend("b", q, k, 5).shape(), (in_pages ? Shape{6, 2, 1, 5} : Shape{2, 2, 3, 5}));
    EXPECT_EQ(cache.bytes(), 8 * (8 + 6 + 8) * sizeof(float));
    EXPECT_EQ(call.assign().size(), 3u);
    const std::string here = "hostile_programs_test.cpp";
    expect_error<ShapeError>(
        [&] {
          call.attend("c", q, rows({2, 3, 8}), v);
        },
        {"/kv_cache] expected c.k" + expected, here});
    expect_error<ShapeError>([&] { call.attend("c", q, rows({1, 1, 3, 8}), v); }, {"expected c.k", here});
    expect_error<ShapeError>([&] { call.attend("c", q, k, rows({2, 1, 2, 6})); }, {"expected c.v", here});
    expect_error<ShapeError>(
        [&] {
          call.attend("a", q, rows({2, 2, 3, 8}), v);
        },
        {"a.k holds [8, 1, 8], which does not fit rows", here});
    expect_error<ShapeError>([&] { call.attend("a", q, rows({2, 1, 3, 8}, bf16), v); }, {"a.k holds", here});
    expect_error<Error>(
        [&] {
          call.attend("d", rows({2, 3, 3, 8}), rows({2, 2, 3, 8}), rows({2, 2, 3, 8}));
        },
        {here});
    expect_error<Error>([&] { call.attend("e", rows({2, 2, 3, 9}), k, v); }, {here});
    for (const std::int64_t width : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{9}, huge})
      expect_error<ShapeError>([&] { call.attend("f", q, k, width); },
                               {"[kv_cache] the first " + std::to_string(width) + " numbers", here});
    EXPECT_FALSE(cache.tensors().contains("f"));
    expect_error<Error>([&] { call.attend("a", tokens, tokens, tokens); }, {here});
    expect_error<Error>([&] { call.attend("a", q, k, Tensor()); }, {});
    Graph other;
    expect_error<Error>([&] { call.attend("a", q, other.input("k", {2, 1, 3, 8}), v); }, {here});
    expect_error<ShapeError>(
        [&] {
          call.check(rows({2, 4, 8}));
        },
        {in_pages ? "[kv_cache] the call is for 1 tokens in each of 6 sequences"
                  : "[kv_cache] the call is for 3 tokens in each of 2 sequences",
         here});
  }
}

TEST_F(HostileModel, NumbersOfRowsPagesAndTokensOutsideTheCacheAreErrorsOfTheRun) {
  nn::KvCache cache(3, 4);
  nn::CacheCall call(g, cache, {.groups = 1, .length = 2, .room = 2});
  const Tensor q = g.input("q", {2, 1, 1, 4}), o = call.attend("a", q, q, q);
  Program program = compile(g, {o}, {.assign = call.assign()});
  using Numbers = std::vector<std::int32_t>;
  const auto run = [&](const Numbers& rows, const Numbers& lengths, const Numbers& table) {
    program.run({{q, std::vector<float>(8, 1)},
                 {call.rows(), rows},
                 {call.lengths(), lengths},
                 {call.table(), table}});
  };
  EXPECT_NO_THROW(run({0, 1}, {2}, {0, 99})) << "a page without tokens of the sequence";
  EXPECT_NO_THROW(run({-1, -1}, {0}, {99, 99}));
  EXPECT_NO_THROW(run({11, -1}, {8}, {2, 0}));
  expect_error<Error>([&] { run({12, 1}, {2}, {0, 0}); }, {"12", "hostile_programs_test.cpp"});
  expect_error<Error>([&] { run({-2, 1}, {2}, {0, 0}); }, {"-2", "hostile_programs_test.cpp"});
  for (const Numbers& lengths : {Numbers{9}, Numbers{-1}})
    expect_error<Error>([&] { run({0, 1}, lengths, {0, 1}); }, {"paged_attn", "hostile_programs_test.cpp"});
  for (const Numbers& table : {Numbers{3, 0}, Numbers{-1, 0}})
    expect_error<Error>([&] { run({0, 1}, {2}, table); }, {"paged_attn", "hostile_programs_test.cpp"});
  EXPECT_NO_THROW(run({0, 1}, {2}, {0, 1})) << "after an error";
}

// Gradients

TEST_F(Hostile, AGradientThroughIntegersOnlyIsRefused) {
  const Tensor loss = mean(cast(equal(argmax(expand(x, {3, 5}), {1}), i), f32));
  expect_error<GradientError>([&] { gradients(loss, {x}); },
                              {"[gradients]", "depends on x f32 [5] through integers or booleans only",
                               "argmax", "hostile_programs_test.cpp"});
  expect_error<GradientError>(
      [&] {
        gradients(sum(cast(cast(x, i32), f32)), {one, x});
      },
      {"cast", "x f32 [5]"});
  const Parameter p("p", Array({5}, f32)), q("q", Array({5}, f32));
  const Tensor w = g.param(p), v = g.param(q);
  expect_error<GradientError>([&] { optim::AdamW({p}).minimize(sum(cast(greater(w, 0), f32))); },
                              {"p f32 [5]"});
  expect_error<GradientError>(
      [&] {
        optim::AdamW({q, p}).minimize(sum(v * cast(greater(w, 0), f32)));
      },
      {"p f32 [5]", "greater"});
  // An integer on the path to the loss is allowed in two cases: a floating-point path also exists, or
  // stop_gradient cuts the path.
  const std::vector<Tensor> fine{
      sum(where(greater(x, 0), x, x * 0.1)),
      sum(x * cast(greater(x, 2), f32)),
      cross_entropy(expand(x, {3, 5}), argmax(expand(x, {3, 5}), {1})),
      sum(index_select(x, 0, argmax(x, {0}))),
      sum(x + stop_gradient(cast(cast(x, i32), f32) - x)),
      sum(stop_gradient(cast(cast(x, i32), f32)) * one.sum()),
      sum(one * cast(argmax(stop_gradient(x)), f32)),
  };
  const Feed feed(x, Array::of<float>({-1, 1, 2, 3, 4}));
  for (const Tensor& y : fine) eval(gradients(y, {x})[0], {feed, {one, 1}});
  // The derivative of relu uses a comparison. A comparison is constant on each side of 0.
  const Tensor slope = gradients(sum(relu(x)), {x})[0];
  EXPECT_EQ(eval(sum(gradients(sum(slope * slope), {x})[0]), {feed}).at(0), 0);
  const Tensor place = gradients(sum(top_k(x, 2)[0]), {x})[0];  // the derivative of top_k uses indices
  EXPECT_EQ(eval(sum(gradients(sum(place * place), {x})[0]), {feed}).at(0), 0);
}

TEST_F(Hostile, AUsersGradientPassesThroughIntegers) {
  const CustomOp rounded =
      custom_op("rounded", {[](const auto& in) { return std::vector{cast(cast(in[0], i32), f32)}; },
                            [](const auto&, const auto&, const auto& z) { return std::vector<Tensor>(z); }});
  const Tensor z = gradients(sum(3 * rounded(x)), {x})[0];
  EXPECT_EQ(eval(z, {{x, Array::of<float>({0.5, 1, 2, 3, 4})}}).at(0), 3);
}

// User-defined ops

TEST_F(Hostile, HostOpsAreCheckedWhenTheyAreRegistered) {
  const auto forward = [](std::span<const HostView>, std::span<const HostView>) {};
  expect_errors({
      {"no forward", [&] { register_host_op({.name = "no_forward"}); }, "no_forward has no forward"},
      {"no name", [&] { register_host_op({.forward = forward}); }, "[register_op]"},
      {"taken", [&] { register_host_op({.name = "add", .forward = forward}); }, "another op"},
      {"the compiler's", [&] { register_host_op({.name = "fused", .forward = forward}); }, "another op"},
      {"no forward",
       [&] {
         custom_op("f", {{}, [](auto&, auto&, auto& z) { return z; }});
       },
       "f has no forward"},
      {"no backward",
       [&] {
         custom_op("f", {[](auto& in) { return in; }, {}});
       },
       "f has no backward"},
      {"no shape rule", [&] { register_op({.name = "no_infer"}); },
       "[register_op] 'no_infer' has no shape rule"},
  });
  EXPECT_EQ(find_op("no_forward"), nullptr);
}

TEST_F(Hostile, ShapeRulesOfUsersAreChecked) {
  auto op = [&, n = 0](std::vector<OutSpec> specs) mutable {
    Op made{.name = "rule" + std::to_string(n++), .infer = [specs](auto, const Attrs&) { return specs; }};
    return [&made = register_op(std::move(made)), this] { record(made, {x}); };
  };
  auto host = [&, n = 0](std::function<std::vector<OutSpec>(std::span<const Operand>)> infer) mutable {
    const CustomOp made = register_host_op(
        {.name = "host_rule" + std::to_string(n++), .infer = std::move(infer), .forward = [](auto, auto) {}});
    return [made, this] { made(x); };
  };
  expect_errors(
      {
          {"no outputs", op({}), "[rule0] its shape rule returned no outputs; got f32 [5]"},
          {"negative", op({{f32, {{-1}, {1}}}}), "[rule1] negative size"},
          {"strides", op({{f32, {{4}, {}}}}), "0 strides"},
          {"an offset below 0", op({{f32, {{4}, {1}, -1}}}), "beyond its memory"},
          {"a stride below 0", op({{f32, {{4}, {-1}}}}), "beyond its memory"},
          {"a view", op({{f32, {{4}, {1}}, 0}}), "not a view op"},
          {"host, no outputs", host([](auto) { return std::vector<OutSpec>(); }), "[host_rule0/host_rule0]"},
          {"host, too large", host([](auto) {
             return std::vector<OutSpec>{{f32, {{huge}, {1}}}};
           }),
           "2^53"},
          {"host, its own exception",
           host([](auto) -> std::vector<OutSpec> { throw std::out_of_range("mine"); }), "mine; got f32 [5]"},
      },
      {"hostile_programs_test.cpp"});
}

// Every op can be recorded by name, with any operands and no attributes.
TEST_F(Hostile, OpsRecordedByNameCheckTheirOperands) {
  const Tensor f = full(g, {2, 3}, 1.0), n = full(g, {2, 3}, 1, i64), b = greater(f, 0);
  for (const Op* op : all_ops())
    for (const Tensor& t : {f, n, b, Tensor(), full(g, {}, 1.0), full(g, {0, 3}, 1.0)})
      for (std::size_t count = 0; count < 8; ++count) {
        SCOPED_TRACE(op->name + " of " + std::to_string(count));
        try {
          const std::vector<Tensor> in(count, t);
          eval(g.record(*op, in, {}, std::source_location::current()), {{x, Array({5}, f32)}},
               {.threads = 2});
        } catch (const Error& e) {
          EXPECT_GT(std::string(e.what()).size(), 8U);
        }
      }
}

TEST_F(Hostile, ExceptionsOfHostOpsHaveTheirStepAndLine) {
  struct Mine : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  const CustomOp op = register_host_op({.name = "throws", .forward = [](auto in, auto) {
                                          const double x = in[0].at(0);
                                          if (x == 1) throw Mine("as it pleases");
                                          if (x == 2) throw ShapeError("[inner] a shape");
                                          if (x == 3) throw 3;
                                          in[0].at(7);
                                        }});
  const Tensor y = op(one);
  const std::string line = "(hostile_programs_test.cpp:" + std::to_string(__LINE__ - 1) + ")";
  Program p = compile(g, {y});
  const auto run = [&](int value) { return [&p, this, value] { p.run({{one, value}}); }; };
  expect_error<Error>(run(1), {"throws] its C++ function threw: as it pleases " + line});
  expect_error<ShapeError>(run(2), {"threw: [inner] a shape " + line});
  expect_error<Error>(run(3), {"not a std::exception " + line});
  expect_error<ShapeError>(run(4), {"[host view] element 7 of f32 [1]", line});
  try {
    p.run({{one, 1}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THROW(std::rethrow_if_nested(e), Mine);
  }
}

}  // namespace
