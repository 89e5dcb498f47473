// What a program may be given by mistake: every call ends in a value or in a tg::Error that says what was
// wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/nn/optimizers/sgd.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using tg::testing::expect_error;

constexpr std::int64_t huge = std::int64_t{1} << 62, last = std::numeric_limits<std::int64_t>::max();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Call {
  const char* name;
  std::function<void()> call;
  std::string part = {};  // of the message
};

// Each call throws an E, and of its message each part is there.
template <class E = Error>
void expect_errors(const std::vector<Call>& calls, std::initializer_list<std::string> parts = {}) {
  for (const Call& c : calls) {
    SCOPED_TRACE(c.name);
    expect_error<E>(c.call, parts);
    expect_error<E>(c.call, {c.part});
  }
}

struct Hostile : ::testing::Test {
  Graph g;
  Tensor x = g.input("x", {5}), one = g.input("one", {1}), i = g.input("i", {3}, i32),
         many = expand(one, {max_elements});
};

// Sizes

TEST_F(Hostile, MoreElementsThanAnyMemoryHoldsAreRefusedWhereTheShapeIsMade) {
  const Shape s{huge};
  const std::vector<Call> calls{
      {"Array", [&] { Array(s, f32); }},
      {"Array of two sizes",
       [&] {
         Array({std::int64_t{1} << 40, std::int64_t{1} << 40}, u8);
       }},
      {"Array::of", [&] { Array::of<float>(s, {1}); }},
      {"beside a size of 0",
       [&] {
         Array({0, huge, huge}, f32);
       }},
      {"negative", [&] { Array({-1}, f32); }},
      {"input", [&] { g.input("y", {huge + 4}); }, "hostile_test.cpp"},
      {"full", [&] { full(g, s, 1.0); }, "[full]"},
      {"uniform", [&] { uniform(g, s); }, "[uniform]"},
      {"randint", [&] { randint(g, s, 0, 5); }},
      {"bernoulli", [&] { bernoulli(g, s, 0.5); }},
      {"expand", [&] { expand(one, s); }, "[expand]"},
      {"expand, method",
       [&] {
         one.expand({-1, huge});
       },
       "hostile_test.cpp"},
      {"concat",
       [&] {
         concat({many, many});
       },
       "[concat]"},
      {"stack",
       [&] {
         stack({many, many});
       }},
      {"one_hot", [&] { one_hot(i, huge); }},
      {"view with a product that overflows",
       [&] {
         x.view({huge, 4});
       },
       "hostile_test.cpp"},
      {"reshape with a product that overflows",
       [&] {
         x.reshape({huge, 4, -1});
       },
       "hostile_test.cpp"},
      {"outer product", [&] { matmul(unsqueeze(many, 1), unsqueeze(many, 0)); }, "[matmul]"},
      {"embedding",
       [&] {
         embedding(expand(g.input("w", {1, 1}), {4, std::int64_t{1} << 40}),
                   expand(g.input("n", {1}, i64), {std::int64_t{1} << 40}));
       }},
      {"pad before", [&] { pad(x, {last}, {0}); }, "[pad]"},
      {"pad around", [&] { pad(x, {last}, {last}); }, "[pad]"},
      {"pad a little less", [&] { pad(x, {last - 2}, {0}); }, "[pad]"},
      {"pad beyond all memory", [&] { pad(x, {max_elements}, {max_elements}); }, "[concat]"},
      {"split whose sum overflows",
       [&] {
         split(x, {huge, huge, huge, huge, 5});
       },
       "[split]"},
      {"split, negative",
       [&] {
         split(x, {-5, 10});
       },
       "[split]"},
      {"chunks", [&] { chunk(many, 1 << 30); }, "[chunk]"},
      {"unbind", [&] { unbind(many); }, "[unbind]"},
      {"arange", [&] { arange(g, 0, 1e300); }, "[arange] steps of"},
      {"arange of 2^62", [&] { arange(g, 0, 0x1p62); }, "[arange] steps of"},
      {"arange backwards", [&] { arange(g, 5, 0); }, "[arange] steps of"},
      {"arange without end", [&] { arange(g, 0, 5, 0); }, "[arange] steps of"},
      {"arange of NaN", [&] { arange(g, 0, nan); }, "[arange] steps of"},
      {"slice_assign at the end of all numbers", [&] { slice_assign(x, one, 0, last); }, "[slice_assign]"},
      {"slice_assign with a huge step", [&] { slice_assign(x, g.input("y", {2}), 0, 1, last); }},
      {"slice_at", [&] { slice_at(x, 0, g.input("at", {}, i64), huge); }, "[slice_at]"},
      {"top_k", [&] { top_k(x, huge); }, "[top_k]"},
      {"rope dims",
       [&] {
         rope(g.input("r", {2, 4}), {}, {.dims = huge});
       },
       "[rope]"},
      {"rope start",
       [&] {
         rope(g.input("r", {2, 4}), {}, {.start = last - 1});
       },
       "[rope]"},
      {"sum_to another shape", [&] { sum_to(x, {4}); }, "[sum_to]"},
      {"sum_to more axes",
       [&] {
         sum_to(x, {1, 5});
       },
       "[sum_to]"},
      {"Params",
       [&] {
         nn::Params p;
         nn::Linear(p, huge, huge);
       }},
      {"KvCache", [&] { nn::KvCache(1, huge); }, "[kv_cache]"},
      {"CacheCall",
       [&] {
         nn::KvCache c(1, 4);
         nn::CacheCall(g, c, huge);
       },
       "[kv_cache]"},
      {"CacheCall, negative",
       [&] {
         nn::KvCache c(1, 4);
         nn::CacheCall(g, c, -1);
       },
       "[kv_cache]"},
      {"CacheCall of no texts",
       [&] {
         nn::KvCache c(4, 4);
         nn::CacheCall(g, c, 0, 1, 1);
       },
       "[kv_cache] a call of 1 tokens in each of 0 texts with room for 1 pages, expected positive sizes"},
      {"CacheCall without room",
       [&] {
         nn::KvCache c(4, 4);
         nn::CacheCall(g, c, 2, 1, -1);
       },
       "[kv_cache]"},
      {"CacheCall of more texts than there are",
       [&] {
         nn::KvCache c(4, 4);
         nn::CacheCall(g, c, huge, huge, huge);
       }},
      {"KvCache of too many rows", [&] { nn::KvCache(1 << 16, 1 << 16); }, "[kv_cache]"},
      {"PagePool", [&] { nn::PagePool(-1, 4); }, "PagePool takes positive sizes"},
      {"Scheduler", [&] { nn::Scheduler({.seats = 0}); }, "[scheduler]"},
      {"Scheduler of no pages", [&] { nn::Scheduler({.pages = 0}); }, "PagePool takes positive sizes"},
      {"Engine", [&] { nn::Engine(nn::LanguageModel{.context = 4}, {.chunk = 0}); }, "[engine]"},
      {"Engine with pages that no cache holds",
       [&] { nn::Engine(nn::LanguageModel{.context = 4}, {.page_size = huge}); }, "[engine]"},
  };
  expect_errors<ShapeError>(calls);
}

TEST_F(Hostile, BytesThatTheSystemDoesNotGiveAreAnErrorWithTheirNumber) {
  const Tensor big = g.input("big", {std::int64_t{1} << 50}, f64);
  expect_errors<OutOfMemory>({
      {"Array", [] { Array({std::int64_t{1} << 50}, f64); },
       "9007199254740992 bytes of f64 [1125899906842624]"},
      {"constant", [&] { eval(full(g, {std::int64_t{1} << 50}, 1.0, f64) * x.sum()); }, "[compile]"},
      {"input", [&] { compile(g, {big + 1}); }, "[compile]"},
      {"softmax", [&] { compile(g, {softmax(many)}); }, "[compile]"},
      {"fetched view",
       [&] {
         eval(many, {{one, 1}});
       },
       "[array]"},
  });
  // Sums of buffers.
  std::vector<Tensor> all;
  for (int n = 0; n < 40; ++n) all.push_back(full(g, {max_elements}, n, f64));
  expect_error<OutOfMemory>([&] { compile(g, all); }, {"intermediate results"});
  expect_error<OutOfMemory>([&] { compile(g, all, {.plan_only = true}); }, {"intermediate results"});
}

TEST_F(Hostile, StepsBeyondTheAxisAreNoMistake) {
  const Feed feed(x, Array::of<float>({0, 1, 2, 3, 4}));
  EXPECT_EQ(eval(slice(x, 0, 2, 5, last), {feed}).values<float>(), std::vector<float>{2});
  EXPECT_EQ(eval(slice(slice(x, 0, 2, 5, last), 0, 0, 1) + 1, {feed}).at(0), 3);
  EXPECT_EQ(eval(slice(x, 0, -last, last, 1) * 2, {feed}).numel(), 5);
  EXPECT_EQ(eval(slice(transpose(unsqueeze(x, 1), 0, 1), 1, 1, 4, huge) + 1, {feed}).at(0), 2);
  EXPECT_EQ(eval(sum(tril(expand(x, {3, 5}), -last)), {feed}).at(0), 0);
  EXPECT_EQ(eval(sum(triu(expand(x, {3, 5}), -last)), {feed}).at(0), 30);
  EXPECT_EQ(eval(sum(tril(expand(x, {3, 5}), huge)), {feed}).at(0), 30);
  EXPECT_EQ(eval(sum(triu(expand(x, {3, 5}), huge + 1)), {feed}).at(0), 0);
}

// Handles

TEST_F(Hostile, EmptyHandlesSayThatTheyAreEmpty) {
  const Tensor none;
  const Parameter p;
  Parameter moved("moved", Array({2}, f32));
  const Parameter taken = std::move(moved);
  Program program = compile(g, {x * 2}), gone = std::move(program);
  Program nothing(nullptr);
  const Pending pending;
  const nn::Layer layer;
  expect_errors({
      {"Tensor::shape", [&] { none.shape(); }},
      {"Tensor::text", [&] { none.text(); }},
      {"Tensor::transpose", [&] { none.transpose(0, 1); }, "hostile_test.cpp"},
      {"Tensor::sum", [&] { none.sum(); }, "hostile_test.cpp"},
      {"Tensor::to", [&] { none.to(f32); }, "hostile_test.cpp"},
      {"record",
       [&] {
         g.record(*find_op("add"), std::vector{x, none}, {}, std::source_location::current());
       },
       "[add] got an undefined tensor (hostile_test.cpp"},
      {"a + none", [&] { x + none; }, "[add]"},
      {"none * 2", [&] { none * 2; }, "[mul]"},
      {"exp", [&] { exp(none); }, "[exp]"},
      {"reshape", [&] { reshape(none, {1}); }, "hostile_test.cpp"},
      {"where", [&] { where(none, x, x); }, "hostile_test.cpp"},
      {"matmul", [&] { matmul(x, none); }, "hostile_test.cpp"},
      {"concat",
       [&] {
         concat({x, none});
       },
       "hostile_test.cpp"},
      {"stack", [&] { stack({none}); }, "hostile_test.cpp"},
      {"layer_norm", [&] { layer_norm(none); }, "hostile_test.cpp"},
      {"embedding", [&] { embedding(x, none); }, "hostile_test.cpp"},
      {"cross_entropy", [&] { cross_entropy(x, none); }, "hostile_test.cpp"},
      {"flash_attn", [&] { flash_attn(none, x, x); }, "hostile_test.cpp"},
      {"attention_weights", [&] { attention_weights(none); }, "hostile_test.cpp"},
      {"rope", [&] { rope(none); }, "hostile_test.cpp"},
      {"squared_norm", [&] { squared_norm({none}); }},
      {"adamw", [&] { adamw(none, x, x, x, 1, 1); }},
      {"gradients of", [&] { gradients(none, {x}); }, "[gradients]"},
      {"gradients by", [&] { gradients(sum(x), {none}); }, "[gradients]"},
      {"cotangent", [&] { gradients(x, {x}, g.input("c", {4})); }, "[gradients]"},
      {"compile", [&] { compile(g, {none}); }, "[compile]"},
      {"eval", [&] { eval(none); }},
      {"Feed",
       [&] {
         gone.feed({none, Array({5}, f32)});
       },
       "[feed]"},
      {"number for it", [&] { Feed(none, 1); }},
      {"fetch", [&] { gone.fetch(none); }, "[fetch]"},
      {"param", [&] { g.param(p); }, "(hostile_test.cpp"},
      {"must_assign", [&] { g.must_assign(p, x); }},
      {"name", [&] { p.name(); }},
      {"shape", [&] { p.shape(); }},
      {"bytes", [&] { p.bytes(); }},
      {"device", [&] { p.device(); }},
      {"read", [&] { p.read(); }},
      {"write",
       [&] {
         Parameter q;
         q.write(Array({2}, f32));
       }},
      {"moved from", [&] { moved.read(); }, "[parameter]"},
      {"assign",
       [&] {
         compile(g, {}, {.assign = {{p, x}}});
       },
       "[compile]"},
      {"optimizer",
       [&] {
         optim::AdamW({taken, p});
       },
       "[optimizer] parameter 1 is empty"},
      {"Program::run", [&] { program.run(); }, "[program]"},
      {"Program::feed",
       [&] {
         program.feed({x, Array({5}, f32)});
       },
       "[program]"},
      {"Program::fetch", [&] { program.fetch(x); }, "[program]"},
      {"Program::memory", [&] { program.memory(); }, "[program]"},
      {"Program::text", [&] { program.text(); }, "[program]"},
      {"Program(nullptr)", [&] { nothing.run(); }, "[program]"},
      {"fetch_later", [&] { nothing.fetch_later({x}); }, "[program]"},
      {"set_step", [&] { nothing.set_step(1); }, "[program]"},
      {"Pending::fetch", [&] { pending.fetch(x); }, "[pending]"},
      {"Pending::ready", [&] { pending.ready(); }, "[pending]"},
      {"Layer", [&] { layer(x); }, "hostile_test.cpp"},
      {"Layer of no function", [&] { nn::Layer("f", std::function<Tensor(TensorArg)>()); }, "[layer]"},
      {"LanguageModel", [&] { nn::LanguageModel().logits(x); }, "[language model]"},
      {"checkpoint", [&] { checkpoint({}, {x}); }, "[checkpoint]"},
      {"a value the graph does not have", [&] { g.tensor(1000000).shape(); }, "[graph]"},
  });
  EXPECT_EQ(p.key(), nullptr);
}

TEST(HostileArray, ThatIsEmptyOrMovedFromHasNoElements) {
  Array a = Array::of<float>({1, 2, 3});
  const Array b = std::move(a);
  for (const Array& empty : {a, Array()}) {
    EXPECT_EQ(empty.numel(), 0);
    EXPECT_EQ(empty.copy().numel(), 0);
    EXPECT_TRUE(empty.values<float>().empty());
    EXPECT_EQ(empty.to(f64).text(), "f64 [0] {}");
    expect_error<ShapeError>([&] { empty.at(0); }, {"[array] element 0"});
    expect_error<ShapeError>([&] { empty.item<float>(); }, {"[array]"});
  }
  expect_error<ShapeError>([&] { b.at(3); }, {"[array] element 3 of f32 [3]"});
  expect_error<ShapeError>([&] { Array(b).set(-1, 0); }, {"[array] element -1"});
  Array ints({2}, i32);
  ints.set(0, -1.5);  // as cast() does
  EXPECT_EQ(ints.at(0), -1);
  expect_error<DTypeError>([&] { ints.set(0, nan); }, {"[array]", "i32"});
  expect_error<DTypeError>([&] { ints.set(0, 0x1p31); }, {"i32"});
  expect_error<DTypeError>([&] { b.to(u8), Array::of<float>({256}).to(u8); }, {"u8"});
  const HostView view{f32, {2}, nullptr};
  expect_error<ShapeError>([&] { view.at(0); }, {"[host view]"});
}

TEST_F(Hostile, TensorsOfAnotherGraphAreRefused) {
  Graph other;
  const Tensor y = other.input("y", {5});
  Program p = compile(g, {x * 2});
  expect_errors({
      {"add", [&] { x + y; }, "[add] the tensors belong to different graphs"},
      {"concat",
       [&] {
         concat({x, y});
       }},
      {"compile", [&] { compile(g, {y}); }, "[compile] tensor 0 to be fetched is of another graph"},
      {"assign",
       [&] {
         compile(g, {}, {.assign = {{Parameter("p", Array({5}, f32)), y}}});
       }},
      {"feed",
       [&] {
         p.feed({y, Array({5}, f32)});
       },
       "[feed]"},
      {"fetch", [&] { p.fetch(y); }},
      {"cotangent", [&] { gradients(x, {x}, y); }, "[gradients]"},
      {"custom op",
       [&] {
         custom_op("f", {[&](const auto&) { return std::vector{y}; },
                         [](const auto&, const auto&, const auto& z) { return z; }})(x);
       },
       "another graph"},
      {"gradient of a custom op",
       [&] {
         const Tensor f =
             custom_op("f", {[](const auto& in) { return std::vector{in[0] * 2}; },
                             [&](const auto&, const auto&, const auto&) { return std::vector{y}; }})(x);
         gradients(sum(f), {x});
       },
       "another graph"},
  });
}

// Numbers

TEST_F(Hostile, NumbersThatTheTypeDoesNotHaveAreRefused) {
  const Tensor n = cast(x, i64), u = cast(x, u8), b = greater(x, 0);
  const std::vector<Call> calls{
      {"i32 + 1e300", [&] { i + 1e300; }, "[add]"},
      {"i32 + 0.5", [&] { i + 0.5; }, "[add]"},
      {"i32 + NaN", [&] { i + nan; }, "[add]"},
      {"i32 + 2^31", [&] { i + 0x1p31; }, "2147483648"},
      {"i64 + an integer that no double is", [&] { n + ((std::int64_t{1} << 53) + 1); }, "[add]"},
      {"u8 - 1, as -1 + u8", [&] { -1 + u; }, "[add]"},
      {"u8 < 256", [&] { less(u, 256); }, "[less]"},
      {"bool == 2", [&] { equal(b, 2); }, "[equal]"},
      {"f32 * 1e300", [&] { x * 1e300; }, "[mul]"},
      {"where", [&] { where(greater(i, 0), i, -INFINITY); }, "[where]"},
      {"clamp of i32", [&] { clamp(i, 0, 1e10); }, "[clamp]"},
      {"clamp of u8", [&] { clamp(u, -1, 5); }, "[clamp]"},
      {"clamp by a fraction", [&] { clamp(i, 0.5, 2); }, "[clamp]"},
      {"full of NaN", [&] { full(g, {2}, nan, i32); }, "[full] i32 cannot hold nan"},
      {"full of 1e30", [&] { full(g, {2}, 1e30, i32); }, "[full]"},
      {"full of 70000 in f16", [&] { full(g, {2}, 70000, f16); }, "[full]"},
      {"full of -1 in u8", [&] { full(g, {2}, -1, u8); }, "[full]"},
      {"full_like", [&] { full_like(i, 0.5); }, "(hostile_test.cpp"},
      {"pad", [&] { pad(i, {1}, {1}, 0.5); }, "(hostile_test.cpp"},
      {"arange of u8", [&] { arange(g, 0, 300, 1, u8); }, "[arange] u8 cannot hold"},
      {"arange of f16", [&] { arange(g, 0, 1e6, 1, f16); }, "[arange]"},
      {"randint", [&] { randint(g, {2}, 0, 257, u8); }, "[randint]"},
      {"uniform", [&] { uniform(g, {2}, 0, 1e300); }, "[uniform]"},
      {"cross_entropy",
       [&] {
         cross_entropy(expand(x, {3, 5}), i, {.ignore_index = last});
       },
       "2^"},
  };
  for (const Call& c : calls) {
    SCOPED_TRACE(c.name);
    expect_error<DTypeError>(c.call, {c.part == "2^" ? "" : c.part, "hostile_test.cpp"});
  }
}

TEST_F(Hostile, NumbersThatTheTypeHasAreTaken) {
  const Tensor h = cast(x, f16);
  const Feed feed(x, Array::of<float>({0, 1, 2, 3, 4}));
  EXPECT_EQ(eval(h * 1e-3 * 1e6, {feed}).at(4), 4000);  // computed in f32
  EXPECT_EQ(eval(sum(where(greater(x, -INFINITY), x, -INFINITY)), {feed}).at(0), 10);
  EXPECT_EQ(eval(cast(x, i64) + ((std::int64_t{1} << 53) - 8), {feed}).values<std::int64_t>()[4],
            (std::int64_t{1} << 53) - 4);
  EXPECT_EQ(eval(randint(g, {64}, 0, 256, u8)).numel(), 64);
  EXPECT_EQ(eval(where(greater(x, 2), -INFINITY, 0), {feed}).text(), "f32 [5] {0, 0, 0, -inf, -inf}");
  const Tensor loss = cross_entropy(expand(x, {3, 5}), i, {.ignore_index = -(std::int64_t{1} << 40)});
  EXPECT_TRUE(std::isfinite(eval(loss, {feed, {i, std::vector<std::int32_t>{0, 1, 2}}}).at(0)));
}

// Programs

TEST_F(Hostile, AssignedTwiceIsRefused) {
  const Parameter p("p", Array({5}, f32));
  const Tensor w = g.param(p);
  expect_error<Error>(
      [&] {
        compile(g, {}, {.assign = {{p, w + 1}, {p, w * 2}}});
      },
      {"[compile] p is assigned twice: add", "mul", "hostile_test.cpp"});
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

TEST_F(Hostile, FeedingWhatTheProgramDoesNotReadIsRefused) {
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
      {"[feed] input m is f32 [8, 4], got an Array of shape [4, 8]", "hostile_test.cpp"});
  p.run({{m, std::vector<float>(32)}});  // a vector has no shape
}

TEST(HostileTraining, NeedsABatch) {
  nn::Params params;
  const nn::Model model(params, {.vocabulary = 8, .context = 4, .layers = 1, .heads = 1, .width = 4});
  const optim::AdamW adamw(params.all());
  expect_error<ShapeError>([&] { train::TrainingProgram(model, adamw, {.batch = 0}); },
                           {"[training] batch is 0"});
  expect_error<ShapeError>([&] { train::EvaluationProgram(model, {.batch = -1}); },
                           {"[training] batch is -1"});
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
  const std::string line = "(hostile_test.cpp:" + std::to_string(__LINE__ - 1) + ")";
  EXPECT_EQ(at_line(g.node_of(logits.id()).where), line);
  expect_error<GradientError>([&] { gradients(logits, {g.param(params.all()[0])}); }, {line});
}

TEST_F(HostileModel, ProgramsOfAModelNameTheLineThatMadeThem) {
  const optim::AdamW adamw(params.all());
  const int first = __LINE__ + 1;
  nn::Generator generator(model);
  train::TrainingProgram training(model, adamw, {.batch = 1});
  train::EvaluationProgram evaluation(model, {.batch = 1});
  const auto line = [&](int below) { return "(hostile_test.cpp:" + std::to_string(first + below) + ")"; };
  const std::vector<std::int32_t> right(8, 0), wrong(8, 99);
  std::vector<std::int32_t> text{1, 99};
  const std::string refusal = "[transformer.wte/embedding] index 99 at position ";
  expect_error<Error>([&] { generator.extend(text, 1, {}, 0); }, {refusal + "1", line(0)});
  expect_error<Error>([&] { training.run(wrong, right, 1e-3); }, {refusal + "0", line(1)});
  expect_error<Error>([&] { training.run(right, wrong, 1e-3); }, {"[cross_entropy] index 99", line(1)});
  expect_error<Error>([&] { training.run({1}, {1}, 1e-3); }, {"[feed] input tokens", line(1)});
  expect_error<Error>([&] { evaluation.run(wrong, right); }, {refusal + "0", line(2)});
}

TEST_F(HostileModel, ACacheOfAnotherLengthOrBatchIsRefusedByTheCall) {
  nn::KvCache one(1, 8), two(2, 8);
  nn::CacheCall shorter(g, one, 2), more(g, two, 4);
  expect_error<ShapeError>(
      [&] { model(tokens, {.cache = &shorter}); },
      {"/kv_cache] the call is for 2 tokens in each of 1 texts, got i32 [1, 4]", "hostile_test.cpp"});
  expect_error<ShapeError>([&] { model(tokens, {.cache = &more}); },
                           {"4 tokens in each of 2 texts", "hostile_test.cpp"});
  const nn::GroupedAttention layer(nn::Path(params) / "layer", 8, 2);
  expect_error<ShapeError>(
      [&] {
        layer(g.input("x", {1, 4, 8}), {.cache = &more});
      },
      {"[layer/kv_cache]", "got f32 [1, 4, 8]", "hostile_test.cpp"});
}

TEST_F(HostileModel, RowsThatDoNotFitTheCacheOrTheCallAreRefused) {
  for (const bool in_pages : {false, true}) {
    Graph graph;
    nn::KvCache cache(2, 4);
    nn::CacheCall call = in_pages ? nn::CacheCall(graph, cache, 2, 3, 2) : nn::CacheCall(graph, cache, 3);
    const auto rows = [&](const Shape& shape, DType dtype = f32) {
      return graph.input("rows", shape, dtype);
    };
    const Tensor q = rows({2, 2, 3, 8}), k = rows({2, 1, 3, 8}), v = rows({2, 1, 3, 6});
    EXPECT_EQ(call.attend("a", q, k, v).shape(), (Shape{2, 2, 3, 6}));
    EXPECT_EQ(call.attend("b", q, k, 5).shape(), (Shape{2, 2, 3, 5}));
    EXPECT_EQ(cache.bytes(), 8 * (8 + 6 + 8) * sizeof(float));
    EXPECT_EQ(call.assign().size(), 3u);
    const std::string here = "hostile_test.cpp";
    expect_error<ShapeError>(
        [&] {
          call.attend("c", q, rows({2, 3, 8}), v);
        },
        {"/kv_cache] expected c.k [2, heads, 3, n], got", here});
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
        {"[kv_cache] the call is for 3 tokens in each of 2 texts", here});
  }
}

TEST_F(HostileModel, NumbersOfRowsPagesAndTokensOutsideTheCacheAreErrorsOfTheRun) {
  nn::KvCache cache(3, 4);
  nn::CacheCall call(g, cache, 1, 2, 2);
  const Tensor q = g.input("q", {1, 1, 2, 4}), o = call.attend("a", q, q, q);
  Program program = compile(g, {o}, {.assign = call.assign()});
  using Numbers = std::vector<std::int32_t>;
  const auto run = [&](const Numbers& rows, const Numbers& lengths, const Numbers& table) {
    program.run({{q, std::vector<float>(8, 1)},
                 {call.rows(), rows},
                 {call.lengths(), lengths},
                 {call.table(), table}});
  };
  EXPECT_NO_THROW(run({0, 1}, {2}, {0, 99})) << "a page that the text has no tokens for";
  EXPECT_NO_THROW(run({-1, -1}, {0}, {99, 99}));
  EXPECT_NO_THROW(run({11, -1}, {8}, {2, 0}));
  expect_error<Error>([&] { run({12, 1}, {2}, {0, 0}); }, {"12", "hostile_test.cpp"});
  expect_error<Error>([&] { run({-2, 1}, {2}, {0, 0}); }, {"-2", "hostile_test.cpp"});
  for (const Numbers& lengths : {Numbers{9}, Numbers{-1}})
    expect_error<Error>([&] { run({0, 1}, lengths, {0, 1}); }, {"paged_attn", "hostile_test.cpp"});
  for (const Numbers& table : {Numbers{3, 0}, Numbers{-1, 0}})
    expect_error<Error>([&] { run({0, 1}, {2}, table); }, {"paged_attn", "hostile_test.cpp"});
  EXPECT_NO_THROW(run({0, 1}, {2}, {0, 1})) << "after an error";
}

// Gradients

TEST_F(Hostile, AGradientThatOnlyIntegersLeadToIsRefused) {
  const Tensor loss = mean(cast(equal(argmax(expand(x, {3, 5}), {1}), i), f32));
  expect_error<GradientError>([&] { gradients(loss, {x}); },
                              {"[gradients]", "depends on x f32 [5] through integers or booleans only",
                               "argmax", "hostile_test.cpp"});
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
  // Beside a path of floating values, and where stop_gradient says so, integers are ordinary.
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
  // The derivative of relu is made with a comparison, and constant beside 0.
  const Tensor slope = gradients(sum(relu(x)), {x})[0];
  EXPECT_EQ(eval(sum(gradients(sum(slope * slope), {x})[0]), {feed}).at(0), 0);
  const Tensor place = gradients(sum(top_k(x, 2)[0]), {x})[0];  // and that of top_k with indices
  EXPECT_EQ(eval(sum(gradients(sum(place * place), {x})[0]), {feed}).at(0), 0);
}

TEST_F(Hostile, AGradientOfOnesOwnPassesOverIntegers) {
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
          {"a view", op({{f32, {{4}, {1}}, 0}}), "no view op"},
          {"host, no outputs", host([](auto) { return std::vector<OutSpec>(); }), "[host_rule0/host_rule0]"},
          {"host, too large", host([](auto) {
             return std::vector<OutSpec>{{f32, {{huge}, {1}}}};
           }),
           "2^53"},
          {"host, its own exception",
           host([](auto) -> std::vector<OutSpec> { throw std::out_of_range("mine"); }), "mine; got f32 [5]"},
      },
      {"hostile_test.cpp"});
}

// By name, every op can be recorded with any operands and without its attributes.
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
  const std::string line = "(hostile_test.cpp:" + std::to_string(__LINE__ - 1) + ")";
  Program p = compile(g, {y});
  const auto run = [&](int value) { return [&p, this, value] { p.run({{one, value}}); }; };
  expect_error<Error>(run(1), {"throws] its C++ function threw: as it pleases " + line});
  expect_error<ShapeError>(run(2), {"threw: [inner] a shape " + line});
  expect_error<Error>(run(3), {"no std::exception " + line});
  expect_error<ShapeError>(run(4), {"[host view] element 7 of f32 [1]", line});
  try {
    p.run({{one, 1}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_THROW(std::rethrow_if_nested(e), Mine);
  }
}

}  // namespace
