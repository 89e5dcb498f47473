// Tests invalid sizes, handles and numbers. Every call must return a value or throw a tg::Error with a
// description of the mistake.
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

// Sizes

TEST_F(Hostile, ShapesThatExceedAnyMemoryAreRefusedWhenTheyAreMade) {
  const Shape s{huge};
  const std::vector<Call> calls{
      {"Array", [&] { Array(s, f32); }},
      {"Array of two sizes",
       [&] {
         Array({std::int64_t{1} << 40, std::int64_t{1} << 40}, u8);
       }},
      {"Array::of", [&] { Array::of<float>(s, {1}); }},
      {"next to a size of 0",
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
      {"CacheCall without sequences",
       [&] {
         nn::KvCache c(4, 4);
         nn::CacheCall(g, c, nn::CacheCall::InPages{.singles = 0, .groups = 0});
       },
       "[kv_cache] a call of 0 tokens and of 0 groups of 1 with room for 1 pages, expected positive sizes"},
      {"CacheCall without room",
       [&] {
         nn::KvCache c(4, 4);
         nn::CacheCall(g, c, {.singles = 2, .room = -1});
       },
       "[kv_cache]"},
      {"CacheCall with too many sequences",
       [&] {
         nn::KvCache c(4, 4);
         nn::CacheCall(g, c, {.singles = huge, .groups = huge, .length = huge, .room = huge});
       }},
      {"KvCache of too many rows", [&] { nn::KvCache(1 << 16, 1 << 16); }, "[kv_cache]"},
      {"PagePool", [&] { nn::PagePool(-1, 4); }, "PagePool needs positive sizes"},
      {"Scheduler", [&] { nn::Scheduler({.slots = 0}); }, "[scheduler]"},
      {"Scheduler of no pages", [&] { nn::Scheduler({.pages = 0}); }, "PagePool needs positive sizes"},
      {"Engine", [&] { nn::Engine(nn::LanguageModel{.context = 4}, {.chunk = 0}); }, "[engine]"},
      {"Engine with pages that no cache holds",
       [&] { nn::Engine(nn::LanguageModel{.context = 4}, {.page_size = huge}); }, "[engine]"},
  };
  expect_errors<ShapeError>(calls);
}

TEST_F(Hostile, FailedAllocationsReportTheNumberOfBytes) {
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
  // The total size of several buffers is too large.
  std::vector<Tensor> all;
  for (int n = 0; n < 40; ++n) all.push_back(full(g, {max_elements}, n, f64));
  expect_error<OutOfMemory>([&] { compile(g, all); }, {"intermediate results"});
  expect_error<OutOfMemory>([&] { compile(g, all, {.plan_only = true}); }, {"intermediate results"});
}

TEST_F(Hostile, StepsBeyondTheAxisAreAllowed) {
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

TEST_F(Hostile, EmptyHandlesReportThatTheyAreEmpty) {
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

TEST(HostileArray, EmptyOrMovedFromArrayHasNoElements) {
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
  ints.set(0, -1.5);  // like cast()
  EXPECT_EQ(ints.at(0), -1);
  expect_error<DTypeError>([&] { ints.set(0, nan); }, {"[array]", "i32"});
  expect_error<DTypeError>([&] { ints.set(0, 0x1p31); }, {"i32"});
  expect_error<DTypeError>([&] { b.to(u8), Array::of<float>({256}).to(u8); }, {"u8"});
  const HostView view{f32, {2}, nullptr};
  expect_error<ShapeError>([&] { view.at(0); }, {"[host view]"});
}

TEST_F(Hostile, TensorsOfADifferentGraphAreRefused) {
  Graph other;
  const Tensor y = other.input("y", {5});
  Program p = compile(g, {x * 2});
  expect_errors({
      {"add", [&] { x + y; }, "[add] the tensors belong to different graphs"},
      {"concat",
       [&] {
         concat({x, y});
       }},
      {"compile", [&] { compile(g, {y}); }, "[compile] tensor 0 to be fetched is not of this graph"},
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
       "different graph"},
      {"gradient of a custom op",
       [&] {
         const Tensor f =
             custom_op("f", {[](const auto& in) { return std::vector{in[0] * 2}; },
                             [&](const auto&, const auto&, const auto&) { return std::vector{y}; }})(x);
         gradients(sum(f), {x});
       },
       "different graph"},
  });
}

// Numbers

TEST_F(Hostile, NumbersOutsideTheTypeAreRefused) {
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

TEST_F(Hostile, NumbersOfTheTypeAreAccepted) {
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

}  // namespace
