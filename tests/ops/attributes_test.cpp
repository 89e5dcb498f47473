// Checks that the text of an op's attributes contains every field with name, value and default. Also compares
// each op's cost with a cost computed by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <tilegrad/ops/paged_attn.h>
#include <tilegrad/tilegrad.h>
#include "core/graph/op_attrs.h"
#include "ops/adamw.h"
#include "ops/common.h"
#include "ops/cross_entropy.h"
#include "ops/index.h"
#include "ops/matmul_in_units.h"
#include "ops/norm.h"
#include "ops/random.h"
#include "ops/rope.h"

namespace {

using namespace tg;

// Whether errors contain a field: always, never, or only if it differs from its default.
enum class Shown { always, changed, never };

template <class A>
struct Field {
  const char* initial;  // "start=0"
  const char* changed;  // "start=5", after `set`
  Shown shown;
  void (*set)(A&);
};

template <class A>
void expect_texts(const A& attrs, const std::vector<Field<A>>& fields, std::size_t changed) {
  std::string all, shown;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const Field<A>& f = fields[i];
    const std::string text = i == changed ? f.changed : f.initial;
    all += (all.empty() ? "" : ", ") + text;
    if (f.shown == Shown::always || (f.shown == Shown::changed && i == changed))
      shown += (shown.empty() ? "" : ", ") + text;
  }
  EXPECT_EQ(Attrs(attrs).text(), all);
  EXPECT_EQ(Attrs(attrs).non_default_text(), shown);
}

// Returns the initial attributes. Also returns a copy for each field in which only this field is changed.
template <class A>
void expect_fields(const A& initial, const std::vector<Field<A>>& fields) {
  expect_texts(initial, fields, fields.size());
  for (std::size_t i = 0; i < fields.size(); ++i) {
    A attrs = initial;
    fields[i].set(attrs);
    expect_texts(attrs, fields, i);
  }
}

TEST(Attributes, AttentionListsEachField) {
  using A = AttentionAttrs;
  constexpr Shown c = Shown::changed, never = Shown::never;
  expect_fields<A>(
      {}, {{"scale=1", "scale=0.5", never, [](A& a) { a.scale = 0.5; }},
           {"causal=false", "causal=true", c, [](A& a) { a.causal = true; }},
           {"top_left=false", "top_left=true", c, [](A& a) { a.top_left = true; }},
           {"window_left=-1", "window_left=0", c, [](A& a) { a.window_left = 0; }},
           {"window_right=-1", "window_right=0", c, [](A& a) { a.window_right = 0; }},
           {"softcap=0", "softcap=1.5", c, [](A& a) { a.softcap = 1.5; }},
           {"dropout=0", "dropout=0.25", c, [](A& a) { a.dropout = 0.25; }},
           {"stream=0", "stream=7", never, [](A& a) { a.stream = 7; }},
           {"bias=false", "bias=true", c, [](A& a) { a.has_bias = true; }},
           {"sink=false", "sink=true", c, [](A& a) { a.has_sink = true; }},
           {"packed=false", "packed=true", c, [](A& a) { a.packed = true; }},
           {"lengths=false", "lengths=true", c, [](A& a) { a.has_lengths = true; }},
           {"nondeterministic=false", "nondeterministic=true", c, [](A& a) { a.nondeterministic = true; }},
           {"kernels=\"best\"", "kernels=\"plain\"", c, [](A& a) { a.kernels = AttentionKernels::plain; }},
           {"backward=false", "backward=true", c, [](A& a) { a.backward = true; }},
           {"z_lse=false", "z_lse=true", c, [](A& a) { a.has_z_lse = true; }},
           {"z_bias=false", "z_bias=true", c, [](A& a) { a.needs_z_bias = true; }},
           {"z_sink=false", "z_sink=true", c, [](A& a) { a.needs_z_sink = true; }},
           {"lse_rest=false", "lse_rest=true", c, [](A& a) { a.has_lse_rest = true; }},
           {"score=\"\"", "score=\"sin(score)\"", c,
            [](A& a) {
              a.expression =
                  std::make_shared<AttentionExpression>(AttentionExpression{.score_text = "sin(score)"});
            }},
           {"mask=\"\"", "mask=\"less(t, 2)\"", c,
            [](A& a) {
              a.expression =
                  std::make_shared<AttentionExpression>(AttentionExpression{.mask_text = "less(t, 2)"});
            }},
           {"z_captured=0", "z_captured=5", c, [](A& a) { a.needs_z_captured = 5; }}});
  using P = PagedAttentionAttrs;
  expect_fields<P>(
      {}, {{"scale=1", "scale=0.5", never, [](P& a) { a.scale = 0.5; }},
           {"window_left=-1", "window_left=0", c, [](P& a) { a.window_left = 0; }},
           {"softcap=0", "softcap=1.5", c, [](P& a) { a.softcap = 1.5; }},
           {"sink=false", "sink=true", c, [](P& a) { a.has_sink = true; }},
           {"score=\"\"", "score=\"sin(score)\"", c,
            [](P& a) {
              a.expression =
                  std::make_shared<AttentionExpression>(AttentionExpression{.score_text = "sin(score)"});
            }},
           {"mask=\"\"", "mask=\"less(t, 2)\"", c, [](P& a) {
              a.expression =
                  std::make_shared<AttentionExpression>(AttentionExpression{.mask_text = "less(t, 2)"});
            }}});
  using K = KeepMaskAttrs;
  expect_fields<K>({{3}, 0.5, 1},
                   {{"shape=[3]", "shape=[4]", Shown::always, [](K& a) { a.shape = {4}; }},
                    {"dropout=0.5", "dropout=0.25", Shown::always, [](K& a) { a.dropout = 0.25; }},
                    {"stream=1", "stream=2", never, [](K& a) { a.stream = 2; }}});
}

TEST(Attributes, LossNormAndRopeListEachField) {
  constexpr Shown c = Shown::changed, never = Shown::never;
  using R = RopeAttrs;
  expect_fields<R>({{1, 0.5}, false, false, 0},
                   {{"frequencies=\"1 0.5\"", "frequencies=\"2\"", never, [](R& a) { a.frequencies = {2}; }},
                    {"interleaved=false", "interleaved=true", c, [](R& a) { a.interleaved = true; }},
                    {"inverse=false", "inverse=true", c, [](R& a) { a.inverse = true; }},
                    {"start=0", "start=5", c, [](R& a) { a.start = 5; }}});
  using C = CrossEntropyAttrs;
  expect_fields<C>({-100, 0}, {{"ignore_index=-100", "ignore_index=0", c, [](C& a) { a.ignore_index = 0; }},
                               {"smoothing=0", "smoothing=0.5", c, [](C& a) { a.smoothing = 0.5; }}});
  using L = LinearCrossEntropyAttrs;
  expect_fields<L>({-100, 0, 0},
                   {{"ignore_index=-100", "ignore_index=0", c, [](L& a) { a.ignore_index = 0; }},
                    {"smoothing=0", "smoothing=0.5", c, [](L& a) { a.smoothing = 0.5; }},
                    {"z_loss=0", "z_loss=0.25", c, [](L& a) { a.z_loss = 0.25; }},
                    {"unit=0", "unit=64", c, [](L& a) { a.unit = 64; }}});
  using N = NormAttrs;
  expect_fields<N>(
      {0.5, false, false},
      {{"eps=0.5", "eps=0.25", never, [](N& a) { a.eps = 0.25; }},
       {"weight=false", "weight=true", never, [](N& a) { a.weight = true; }},
       {"bias=false", "bias=true", never, [](N& a) { a.bias = true; }},
       {"weight_gradient=false", "weight_gradient=true", never, [](N& a) { a.weight_gradient = true; }}});
  using W = AdamWAttrs;
  expect_fields<W>(
      {0.5, 0.25, 0.125, {0.1}, {f32}},
      {{"beta1=0.5", "beta1=0", never, [](W& a) { a.beta1 = 0; }},
       {"beta2=0.25", "beta2=0", never, [](W& a) { a.beta2 = 0; }},
       {"eps=0.125", "eps=0", never, [](W& a) { a.eps = 0; }},
       {"weight_decay=[0.1]", "weight_decay=[0.1, 0]", never, [](W& a) { a.weight_decay.push_back(0); }},
       {"copies=\"f32\"", "copies=\"f32 bf16\"", never, [](W& a) { a.copies.push_back(bf16); }}});
}

TEST(Attributes, AxisAndRandomListEachField) {
  constexpr Shown c = Shown::changed, always = Shown::always, never = Shown::never;
  using X = AxisAttrs;
  expect_fields<X>({1}, {{"axis=1", "axis=2", always, [](X& a) { a.axis = 2; }}});
  using S = SoftmaxAttrs;
  expect_fields<S>({1}, {{"axis=1", "axis=2", always, [](S& a) { a.axis = 2; }}});
  using A = SliceAssignAttrs;
  expect_fields<A>({3, 2, 1}, {{"axis=3", "axis=0", always, [](A& a) { a.axis = 0; }},
                               {"start=2", "start=0", always, [](A& a) { a.start = 0; }},
                               {"step=1", "step=4", c, [](A& a) { a.step = 4; }}});
  using T = SliceAtAttrs;
  expect_fields<T>({1, 5}, {{"axis=1", "axis=2", always, [](T& a) { a.axis = 2; }},
                            {"length=5", "length=6", always, [](T& a) { a.length = 6; }}});
  using U = CumsumAttrs;
  expect_fields<U>({1, false}, {{"axis=1", "axis=2", always, [](U& a) { a.axis = 2; }},
                                {"reverse=false", "reverse=true", c, [](U& a) { a.reverse = true; }}});
  using K = TopKAttrs;
  expect_fields<K>({1, 5}, {{"axis=1", "axis=2", always, [](K& a) { a.axis = 2; }},
                            {"k=5", "k=6", always, [](K& a) { a.k = 6; }}});
  using R = ArangeAttrs;
  expect_fields<R>({0.5, 1, 7, f64}, {{"start=0.5", "start=0", always, [](R& a) { a.start = 0; }},
                                      {"step=1", "step=2", c, [](R& a) { a.step = 2; }},
                                      {"count=7", "count=8", always, [](R& a) { a.count = 8; }},
                                      {"dtype=f64", "dtype=bf16", always, [](R& a) { a.dtype = bf16; }}});
  using E = ReduceAttrs;
  expect_fields<E>({{1}, false}, {{"axes=[1]", "axes=[0, 1]", always,
                                   [](E& a) {
                                     a.axes = {0, 1};
                                   }},
                                  {"keepdim=false", "keepdim=true", c, [](E& a) { a.keepdim = true; }}});
  using G = RankAttrs;
  expect_fields<G>({4}, {{"ranks=4", "ranks=2", always, [](G& a) { a.ranks = 2; }},
                         {"shift=0", "shift=-1", c, [](G& a) { a.shift = -1; }},
                         {"wide=false", "wide=true", c, [](G& a) { a.wide = true; }}});
  using M = MatmulInUnitsAttrs;
  expect_fields<M>({64}, {{"unit=64", "unit=128", always, [](M& a) { a.unit = 128; }},
                          {"along_k=false", "along_k=true", c, [](M& a) { a.along_k = true; }}});
  using D = DropoutAttrs;
  expect_fields<D>({0.5, 1}, {{"p=0.5", "p=0.25", always, [](D& a) { a.p = 0.25; }},
                              {"stream=1", "stream=2", never, [](D& a) { a.stream = 2; }}});
  using N = RandomAttrs;
  expect_fields<N>({{3}, f32, 0.5, 2, 1}, {{"shape=[3]", "shape=[4]", always, [](N& a) { a.shape = {4}; }},
                                           {"dtype=f32", "dtype=f64", always, [](N& a) { a.dtype = f64; }},
                                           {"a=0.5", "a=0.25", always, [](N& a) { a.a = 0.25; }},
                                           {"b=2", "b=3", always, [](N& a) { a.b = 3; }},
                                           {"stream=1", "stream=5", never, [](N& a) { a.stream = 5; }}});
}

// Only a graph gives access to the attributes of these ops.
TEST(Attributes, ViewListsEachField) {
  Graph g;
  const Tensor x = g.input("x", {4, 6});
  struct Row {
    Tensor y;
    const char *all, *shown;
  };
  const Row rows[] = {
      {slice(x, 1, 2, 5), "axis=1, start=2, stop=5, step=1", "axis=1, start=2, stop=5"},
      {slice(x, 1, 0, 6, 3), "axis=1, start=0, stop=6, step=3", "axis=1, start=0, stop=6, step=3"},
      {permute(x, {1, 0}), "order=[1, 0]", "order=[1, 0]"},
      {view(x, {24}), "shape=[24]", "shape=[24]"},
      {expand(view(x, {1, 24}), {2, 24}), "shape=[2, 24]", "shape=[2, 24]"},
      {cast(x, f64), "dtype=f64", "dtype=f64"},
      {matmul(x, transpose(x, 0, 1)), "wide=false", ""},
      {concat({x, x}, 1), "axis=1", "axis=1"},
      {split(x, {1, 3}, 0)[1], "axis=0, sizes=\"1, 3\"", "axis=0, sizes=\"1, 3\""},
  };
  for (const Row& row : rows) {
    const Node& node = g.node_of(row.y.id());
    EXPECT_EQ(node.attrs.text(), row.all) << node.op->name;
    EXPECT_EQ(node.attrs.non_default_text(), row.shown) << node.op->name;
  }
}

// If two graphs differ in one attribute, their programs are different.
TEST(Attributes, ChangeTheHashOfAGraph) {
  std::set<std::array<std::uint64_t, 2>> hashes;
  const std::vector<RopeOptions> all{{}, {.interleaved = true}, {.start = 1}, {.start = 2}, {.theta = 50}};
  for (const RopeOptions& o : all) {
    Graph g;
    rope(g.input("x", {3, 8}), {}, o);
    hashes.insert(g.hash());
  }
  EXPECT_EQ(hashes.size(), all.size());
}

struct Work {
  std::string name;
  std::vector<Shape> in, out;
  Attrs attrs;
  double flops, roundings, bytes = 0;
};

TEST(Work, MatchesHandCounts) {
  const std::vector<Shape> forward{{2, 3, 4, 5}, {2, 1, 6, 5}, {2, 1, 6, 7}},
      backward{{2, 3, 4, 5}, {2, 1, 6, 5}, {2, 1, 6, 7}, {2, 3, 4, 7}, {2, 3, 4}, {2, 3, 4, 7}, {3}},
      gradients(backward.begin(), backward.begin() + 3);
  constexpr double pairs = 2 * 2 * 3, width = 5 + 7, back = 3 * 5 + 2 * 7;  // a multiply-add has two FLOPs
  constexpr double one_row = 5 + 4 + 2 * 6 + 3, scores = 5 + 4 + 3 + 7 + 3;
  using A = AttentionAttrs;
  // There are two sequences with five queries each. Each sequence has room for three pages of four keys.
  const std::vector<Shape> paged{{2, 4, 5, 6}, {9, 4, 2, 6}, {9, 4, 2, 7}, {2, 3}, {2}};
  constexpr double keys = 2 * 3 * 4, pools = 9 * 4 * 2 * (6 + 7);
  std::vector<Shape> with_sink = gradients;
  with_sink.push_back({3});
  const std::vector<Work> rows{
      {"flash_attn", forward, {}, A{}, pairs * 24 * width, one_row},
      {"flash_attn", forward, {}, A{.causal = true}, pairs * (3 + 4 + 5 + 6) * width, one_row},
      {"flash_attn",
       forward,
       {},
       A{.causal = true, .top_left = true},
       pairs * (1 + 2 + 3 + 4) * width,
       one_row},
      {"flash_attn", forward, {}, A{.causal = true, .window_left = 1}, pairs * 4 * 2 * width, one_row},
      {"flash_attn", forward, {}, A{.window_right = 1}, pairs * (4 + 5 + 6 + 6) * width, one_row},
      {"flash_attn_backward", backward, gradients, A{.backward = true}, pairs * 24 * back, scores + 3 * 4},
      {"flash_attn_backward", backward, gradients, A{.causal = true, .backward = true}, pairs * 18 * back,
       scores + 3 * 4},
      {"flash_attn_backward", backward, with_sink,
       A{.has_sink = true, .backward = true, .needs_z_sink = true}, pairs * 24 * back, scores + 2 * 4 * 6},
      {"paged_attn",
       paged,
       {},
       PagedAttentionAttrs{},
       2 * keys * 4 * 5 * (6 + 7),
       6 + 2 * 3 * 4 + 7,
       4 * (keys * 2 * (6 + 7) - pools)},
      {"matmul", {{2, 4, 6}, {6, 5}}, {{2, 4, 5}}, {}, 2. * 2 * 4 * 6 * 5, 6 + 1},
      {"matmul_in_units", {{4, 130}, {130, 5}}, {{4, 5}}, MatmulInUnitsAttrs{64}, 2. * 4 * 130 * 5, 130},
      {"matmul_in_units",
       {{4, 130}, {130, 5}},
       {{4, 5}},
       MatmulInUnitsAttrs{64, true},
       2. * 4 * 130 * 5,
       130 + 3},
      {"matmul_in_units",
       {{4, 129}, {129, 5}},
       {{4, 5}},
       MatmulInUnitsAttrs{64, true},
       2. * 4 * 129 * 5,
       129 + 3},
      {"matmul_in_units",
       {{4, 128}, {128, 5}},
       {{4, 5}},
       MatmulInUnitsAttrs{64, true},
       2. * 4 * 128 * 5,
       128 + 2},
      {"linear_cross_entropy", {{4, 6}, {6, 5}, {4}}, {}, {}, 4. * 5 * (2 * 6 + 20), 6 + 5 + 8},
      {"cross_entropy", {{4, 6}, {4}}, {}, {}, 20. * 4 * 6, 6 + 6},
      {"cross_entropy_backward", {{4, 6}, {4}}, {}, {}, 20. * 4 * 6, 6},
      {"softmax", {{4, 6}}, {}, SoftmaxAttrs{0}, 25. * 4 * 6, 4 + 3},
      {"log_softmax", {{4, 6}}, {}, SoftmaxAttrs{1}, 25. * 4 * 6, 6 + 3},
      {"layer_norm", {{4, 6}}, {}, {}, 10. * 4 * 6, 2 * 6 + 6},
      {"layer_norm_backward", {{4, 6}}, {}, {}, 10. * 4 * 6, 6 + 6},
      {"rms_norm_backward", {{9, 6}}, {}, {}, 10. * 9 * 6, 9 + 6},
      {"rope", {{4, 6}}, {}, {}, 10. * 4 * 6, 3},
      {"dropout", {{4, 6}, {2}}, {{4, 6}}, {}, 40. * 4 * 6, 1},
      {"uniform", {{2}}, {{4, 6}}, {}, 40. * 4 * 6, 1},
      {"index_add", {{9, 6}, {4}, {4, 6}}, {}, {}, 4. * 6, 4},
      {"adamw", {}, {{4, 6}, {4, 6}, {4, 6}, {4, 6}}, {}, 15. * 4 * 6, 1},
  };
  const auto operands = [](const std::vector<Shape>& shapes) {
    std::vector<Operand> all;
    for (const Shape& s : shapes) all.push_back({f32, row_major(s)});
    return all;
  };
  for (const Work& row : rows) {
    const Op* op = find_op(row.name);
    ASSERT_TRUE(op && op->cost) << row.name;
    const std::vector<Operand> in = operands(row.in), out = operands(row.out);
    const Cost c = op->cost(in, out, row.attrs);
    EXPECT_EQ(c.flops, row.flops) << row.name << " " << row.attrs.text();
    EXPECT_EQ(c.bytes, row.bytes) << row.name << " " << row.attrs.text();
    EXPECT_EQ(op->roundings ? op->roundings(in, out, row.attrs) : 1, row.roundings)
        << row.name << " " << row.attrs.text();
  }
}

// Promotion converts booleans to integers and integers to floating-point types. If two integer types differ,
// the result has the wider type. If two floating-point types differ and one is f64, the result is f64.
// Otherwise it is f32.
TEST(Promotion, DependsOnBothTypesInAnyOrder) {
  const std::vector<DType> integers{boolean, u8, i32, i64}, floats{f64, f32, bf16, f16};
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = 0; b < 4; ++b) {
      EXPECT_EQ(detail::promote(integers[a], integers[b]), integers[std::max(a, b)]) << a << " " << b;
      EXPECT_EQ(detail::promote(integers[a], floats[b]), floats[b]) << a << " " << b;
      EXPECT_EQ(detail::promote(floats[b], integers[a]), floats[b]) << a << " " << b;
      const DType expected = a == b ? floats[a] : a == 0 || b == 0 ? f64 : f32;
      EXPECT_EQ(detail::promote(floats[a], floats[b]), expected) << a << " " << b;
    }
}

}  // namespace
