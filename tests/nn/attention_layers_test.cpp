// Tests attention layers. Compares their results with the reference formulas. Also checks the steps of
// compiled graphs, and the names and shapes of parameters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <tilegrad/nn/layers/attention.h>
#include <tilegrad/tilegrad.h>
#include "core/compile/lower.h"
#include "tests/reference/multi_head_attention.h"
#include "tests/reference/reference_checks.h"

namespace {

using namespace tg;
using reference::Index;
using reference::Matrix;
using Call = std::function<Tensor(const Tensor& x, const Tensor& residual, nn::CacheCall* cache)>;

template <class Layer>
Call call_of(Layer layer) {
  return [layer](const Tensor& x, const Tensor& residual, nn::CacheCall* cache) {
    return layer(x, {.cache = cache, .residual = residual});
  };
}

struct Kind {
  const char* name;
  std::function<Call(const nn::Path&)> make;  // layers of width 16 with 4 heads
};

std::vector<Kind> kinds() {
  return {
      {"GPT-2's", [](const nn::Path& at) { return call_of(nn::SelfAttention(at, 16, 4)); }},
      {"as many key heads as heads",
       [](const nn::Path& at) { return call_of(nn::GroupedAttention(at, 16, 4)); }},
      {"grouped",
       [](const nn::Path& at) {
         return call_of(nn::GroupedAttention(at, 16, 4, {.key_heads = 2, .bias = true}));
       }},
      {"one key head",
       [](const nn::Path& at) { return call_of(nn::GroupedAttention(at, 16, 4, {.key_heads = 1})); }},
      {"latent", [](const nn::Path& at) { return call_of(nn::LatentAttention(at, 16, 4, {.latent = 6})); }},
      {"latent, compressed queries",
       [](const nn::Path& at) {
         return call_of(nn::LatentAttention(at, 16, 4, {.latent = 6, .query_latent = 5, .rope_width = 2}));
       }},
  };
}

bool is_latent(const Kind& kind) {
  return std::string(kind.name).find("latent") == 0;
}

std::int64_t steps_of(const Program& program, const Op& op) {
  return std::count_if(program.steps().begin(), program.steps().end(),
                       [&](const Step& s) { return s.op == &op; });
}

bool is_copy(const Step& s) {
  if (s.op == &contiguous_op || s.op == &copy_op) return true;
  if (s.op != &fused_op) return false;
  const auto& code = s.attrs.as<FusedAttrs>().code;
  return code.size() == 1 && (code[0].op == &copy_op || code[0].op == &contiguous_op);
}

std::string copies(const Program& program) {
  std::string names;
  for (const Step& s : program.steps())
    if (is_copy(s)) names += s.name + "\n";
  return names;
}

TEST(AttentionLayers, CopyNothingForwardOrBackward) {
  for (const Kind& kind : kinds()) {
    nn::Params params;
    const Call attention = kind.make(nn::Path(params) / "attn");
    Graph g;
    const Tensor x = g.input("x", {2, 6, 16});
    const Tensor y = attention(x, x, nullptr);
    std::vector<Tensor> inputs = {x};
    for (const Parameter& p : params.all()) inputs.push_back(g.param(p));
    const Program forward = compile(g, {y}), both = compile(g, gradients(sum(y * y), inputs));
    EXPECT_EQ(copies(forward), "") << kind.name;
    EXPECT_EQ(copies(both), "") << kind.name;
    EXPECT_EQ(steps_of(forward, flash_attn_op), 1) << kind.name;
    // If two projections produce the keys of a head, the keys are concatenated. The backward pass
    // concatenates the gradients of a split tensor's parts. Such parts are keys and values, or the latent and
    // the rotary key.
    EXPECT_EQ(steps_of(forward, concat_op), is_latent(kind) ? 1 : 0) << forward.text();
    EXPECT_EQ(steps_of(both, concat_op), is_latent(kind) ? 3 : 0) << both.text();
  }
}

TEST(AttentionLayers, CopyNothingOnATokenAfterACache) {
  for (const Kind& kind : kinds()) {
    nn::Params params;
    const Call attention = kind.make(nn::Path(params) / "attn");
    nn::KvCache cache(1, 32);
    Graph g;
    nn::CacheCall call(g, cache, 1);
    const Tensor x = g.input("x", {1, 1, 16});
    const Tensor y = attention(x, x, &call);
    const Program program = compile(g, {y}, {.assign = call.assign()});
    EXPECT_EQ(copies(program), "") << kind.name;
    // The cache is extended in place.
    for (const Step& s : program.steps()) {
      if (s.op != &index_assign_op) continue;
      EXPECT_EQ(s.out.size(), cache.tensors().size());
      for (std::size_t i = 0; i < s.out.size(); ++i) EXPECT_EQ(s.in[2 * i].data, s.out[i].data) << kind.name;
    }
    EXPECT_EQ(steps_of(program, index_assign_op), 1);
  }
}

// Returns a parameter as a matrix [in, out]. Rows are multiplied by this matrix.
Matrix weight(const nn::Params& params, const std::string& name) {
  const Parameter& p = *params.find("attn." + name);
  return reference::transpose({p.shape()[0], p.shape()[1], p.read().values<double>()});
}

// Rotates row i by position i. The last n pairs of columns change: (a, b) → (a·cos − b·sin, a·sin + b·cos).
enum class Pairs { halves, neighbours };
Matrix rotated(Matrix x, double theta, Pairs pairs) {
  const Index n = x.cols / 2;
  for (Index t = 0; t < x.rows; ++t)
    for (Index i = 0; i < n; ++i) {
      const double angle = double(t) * std::pow(theta, -double(i) / double(n));
      const Index a = pairs == Pairs::halves ? i : 2 * i, b = pairs == Pairs::halves ? i + n : 2 * i + 1;
      const double u = x(t, a), v = x(t, b);
      x(t, a) = u * std::cos(angle) - v * std::sin(angle);
      x(t, b) = u * std::sin(angle) + v * std::cos(angle);
    }
  return x;
}

Matrix rows(const Matrix& x, Index begin, Index end) {
  return reference::transpose(reference::columns(reference::transpose(x), begin, end));
}

// Computes softmax(QKᵀ/√d)V over the keys up to the query's position.
Matrix causal(const Matrix& q, const Matrix& k, const Matrix& v) {
  Matrix o(q.rows, v.cols);
  for (Index i = 0; i < q.rows; ++i) {
    const Matrix row = reference::standard_forward(rows(q, i, i + 1), rows(k, 0, i + 1), rows(v, 0, i + 1)).O;
    for (Index j = 0; j < v.cols; ++j) o(i, j) = row(0, j);
  }
  return o;
}

Matrix beside(const Matrix& a, const Matrix& b) {
  Matrix both(a.rows, a.cols + b.cols);
  for (Index i = 0; i < a.rows; ++i)
    for (Index j = 0; j < both.cols; ++j) both(i, j) = j < a.cols ? a(i, j) : b(i, j - a.cols);
  return both;
}

constexpr Index length = 7;

Matrix output(const Call& attention, const Matrix& x) {
  Graph g;
  const Tensor input = g.input("x", {1, x.rows, x.cols}, f64);
  return {x.rows, x.cols, eval(attention(input, {}, nullptr), {{input, x.data}}).values<double>()};
}

TEST(SelfAttention, IsMultiHeadAttention) {
  nn::Params params(3, f64);
  const Call attention = call_of(
      nn::SelfAttention(nn::Path(params) / "attn", 8, 2, {.bias = false, .init = nn::Init::normal(0.5)}));
  const Matrix x = reference::random_matrix(length, 8, 1),
               qkv = reference::matmul(x, weight(params, "c_attn.weight"));
  Matrix o;
  for (Index h = 0; h < 2; ++h) {
    const auto part = [&](Index of) { return reference::columns(qkv, 8 * of + 4 * h, 8 * of + 4 * h + 4); };
    o = h == 0 ? causal(part(0), part(1), part(2)) : beside(o, causal(part(0), part(1), part(2)));
  }
  EXPECT_TRUE(close(output(attention, x), reference::matmul(o, weight(params, "c_proj.weight"))));
}

TEST(GroupedAttention, SharesEachKeyHeadAmongItsQueries) {
  for (const std::int64_t key_heads : {1, 2, 4})
    for (const Pairs pairs : {Pairs::halves, Pairs::neighbours}) {
      nn::Params params(3, f64);
      const Call attention =
          call_of(nn::GroupedAttention(nn::Path(params) / "attn", 16, 4,
                                       {.key_heads = key_heads,
                                        .rope = {.theta = 50, .interleaved = pairs == Pairs::neighbours},
                                        .init = nn::Init::normal(0.5)}));
      const Matrix x = reference::random_matrix(length, 16, 1);
      const Matrix q = reference::matmul(x, weight(params, "q_proj.weight")),
                   k = reference::matmul(x, weight(params, "k_proj.weight")),
                   v = reference::matmul(x, weight(params, "v_proj.weight"));
      Matrix o(length, 0);
      for (Index h = 0; h < 4; ++h) {
        const auto head = [](const Matrix& m, Index i) { return reference::columns(m, 4 * i, 4 * i + 4); };
        const Index of = h / (4 / key_heads);
        o = beside(o, causal(rotated(head(q, h), 50, pairs), rotated(head(k, of), 50, pairs), head(v, of)));
      }
      EXPECT_TRUE(close(output(attention, x), reference::matmul(o, weight(params, "o_proj.weight"))));
    }
}

// Computes RMSNorm with a gain of 1.
Matrix normalised(Matrix x, double eps) {
  for (Index i = 0; i < x.rows; ++i) {
    const double factor = 1 / std::sqrt(reference::dot(x, i, x, i) / double(x.cols) + eps);
    for (Index j = 0; j < x.cols; ++j) x(i, j) *= factor;
  }
  return x;
}

TEST(LatentAttention, MatchesTheSeedsFormula) {
  constexpr Index heads = 3, d = 4, dv = 5, m = 6, p = 2, width = 8;
  for (const std::int64_t query_latent : {0, 7}) {
    nn::Params params(3, f64);
    const nn::LatentAttention::Options options{.latent = m,
                                               .query_latent = query_latent,
                                               .rope_width = p,
                                               .head_width = d,
                                               .value_width = dv,
                                               .theta = 50,
                                               .init = nn::Init::normal(0.5)};
    const Call attention = call_of(nn::LatentAttention(nn::Path(params) / "attn", width, heads, options));
    const Matrix x = reference::random_matrix(length, width, 1);
    const auto times = [&](const Matrix& a, const char* name) {
      return reference::matmul(a, weight(params, name));
    };
    const Matrix q = query_latent == 0
                         ? times(x, "q_proj.weight")
                         : times(normalised(times(x, "q_a_proj.weight"), 1e-6), "q_b_proj.weight");
    const Matrix a = times(x, "kv_a_proj_with_mqa.weight");
    const Matrix kv = times(normalised(reference::columns(a, 0, m), 1e-6), "kv_b_proj.weight");
    const Matrix k_rope = rotated(reference::columns(a, m, m + p), 50, Pairs::neighbours);
    Matrix o(length, 0);
    for (Index h = 0; h < heads; ++h) {
      const Index at_q = h * (d + p), at_kv = h * (d + dv);
      const Matrix q_rope = rotated(reference::columns(q, at_q + d, at_q + d + p), 50, Pairs::neighbours);
      o = beside(o, causal(beside(reference::columns(q, at_q, at_q + d), q_rope),
                           beside(reference::columns(kv, at_kv, at_kv + d), k_rope),
                           reference::columns(kv, at_kv + d, at_kv + d + dv)));
    }
    EXPECT_TRUE(close(output(attention, x), times(o, "o_proj.weight")));
  }
}

TEST(AttentionLayers, GiveTheSameResultWithACacheAsInOneCall) {
  for (const Kind& kind : kinds()) {
    nn::Params params(3, f64);
    const Call attention = kind.make(nn::Path(params) / "attn");
    for (Parameter p : params.all()) {
      Array a = p.read();
      for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, a.at(i) * (p.shape().size() == 2 ? 20 : 1));
      p.write(a);
    }
    const std::vector<double> x = reference::random_vector(2 * 12 * 16, 1);
    Graph whole;
    const Tensor input = whole.input("x", {2, 12, 16}, f64);
    const std::vector<double> expected = eval(attention(input, {}, nullptr), {{input, x}}).values<double>();
    nn::KvCache cache(2, 13);
    std::vector<double> got(expected.size());
    std::int32_t held = 0;
    for (const std::int64_t piece : {5, 1, 4, 1, 1}) {
      Graph g;
      nn::CacheCall call(g, cache, piece);
      const Tensor part = g.input("x", {2, piece, 16}, f64);
      const Tensor y = attention(part, {}, &call);
      Program program = compile(g, {y}, {.assign = call.assign(), .verify = true});
      EXPECT_EQ(copies(program), "") << kind.name << ", " << piece;
      std::vector<double> values;
      for (std::int64_t row = 0; row < 2; ++row)
        values.insert(values.end(), x.begin() + (row * 12 + held) * 16,
                      x.begin() + (row * 12 + held + piece) * 16);
      program.run({{part, values}, {call.cached(), std::vector(2, held)}});
      const std::vector<double> y_values = program.fetch(y).values<double>();
      for (std::int64_t row = 0; row < 2; ++row)
        std::copy_n(y_values.begin() + row * piece * 16, piece * 16, got.begin() + (row * 12 + held) * 16);
      held += static_cast<std::int32_t>(piece);
    }
    EXPECT_TRUE(reference::close(got, expected)) << kind.name;
  }
}

// With LongRoPE and without a cache, short sequences use a different set of frequencies.
TEST(AttentionLayers, ShortFrequenciesAreUsedUpToTheirLengthWithoutACache) {
  using Frequencies = std::vector<double>;
  constexpr std::int64_t short_length = 5;
  const auto grouped = [](bool interleaved) {
    return [=](const nn::Path& at, const Frequencies& all, const Frequencies& is_short, std::int64_t length) {
      return call_of(nn::GroupedAttention(at, 16, 4,
                                          {.rope = {.interleaved = interleaved, .frequencies = all},
                                           .short_frequencies = is_short,
                                           .short_length = length}));
    };
  };
  const auto latent = [](bool interleaved, std::int64_t query_latent) {
    return [=](const nn::Path& at, const Frequencies& all, const Frequencies& is_short, std::int64_t length) {
      return call_of(nn::LatentAttention(at, 16, 4,
                                         {.latent = 6,
                                          .query_latent = query_latent,
                                          .rope_width = 4,
                                          .frequencies = all,
                                          .short_frequencies = is_short,
                                          .short_length = length,
                                          .interleaved = interleaved}));
    };
  };
  using Make = std::function<Call(const nn::Path&, const Frequencies&, const Frequencies&, std::int64_t)>;
  const Make makes[] = {grouped(false), grouped(true), latent(false, 0), latent(true, 0), latent(true, 5)};
  const Frequencies few = {1, 0.5}, many = {0.25, 2};
  for (std::size_t i = 0; i < std::size(makes); ++i)
    for (const bool has_cache : {false, true})
      for (const std::int64_t length : {1, 4, 5, 6}) {
        const auto output = [&](const Frequencies& all, const Frequencies& is_short, std::int64_t up_to) {
          nn::Params params(3, f64);
          const Call attention = makes[i](nn::Path(params) / "attn", all, is_short, up_to);
          for (Parameter p : params.all()) {  // scores are large, so positions matter
            Array a = p.read();
            for (std::int64_t n = 0; n < a.numel(); ++n) a.set(n, a.at(n) * (p.shape().size() == 2 ? 20 : 1));
            p.write(a);
          }
          Graph g;
          const Tensor x = g.input("x", {1, length, 16}, f64);
          nn::KvCache cache(1, 8);
          std::optional<nn::CacheCall> call;
          if (has_cache) call.emplace(g, cache, length);
          const Tensor y = attention(x, {}, call ? &*call : nullptr);
          Program program = compile(g, {y}, {.assign = call ? call->assign() : std::vector<Assign>()});
          if (call) program.feed({call->cached(), 0});
          program.run({{x, reference::random_vector(static_cast<std::size_t>(length * 16), 1)}});
          return program.fetch(y);
        };
        const Array got = output(many, few, short_length), as_few = output(few, {}, 0),
                    as_many = output(many, {}, 0);
        const bool is_short = !has_cache && length <= short_length;
        EXPECT_TRUE(got.same_bits(is_short ? as_few : as_many))
            << "layer " << i << ", " << length << " tokens, " << has_cache;
        EXPECT_EQ(as_few.same_bits(as_many), length == 1) << "layer " << i;
      }
}

TEST(LatentAttention, CachesOnlyTheLatentAndTheRotaryKey) {
  nn::Params params;
  const nn::LatentAttention attention(nn::Path(params) / "attn", 16, 4, {.latent = 6, .rope_width = 2});
  nn::KvCache cache(1, 32);
  Graph g;
  nn::CacheCall call(g, cache, 1);
  attention(g.input("x", {1, 1, 16}), {.cache = &call});
  ASSERT_EQ(cache.tensors().size(), 1u);
  EXPECT_EQ(cache.tensors().begin()->second.shape(), (Shape{32, 1, 6 + 2}));
  EXPECT_EQ(cache.bytes(), 32 * (6 + 2) * sizeof(float));
}

// A bf16 cache needs half the memory of an f32 cache. Its rows differ only by the rounding to bf16.
TEST(KvCache, StoresRowsInADifferentDtype) {
  for (const Kind& kind : kinds()) {
    nn::Params params(3);
    const Call attention = kind.make(nn::Path(params) / "attn");
    for (Parameter p : params.all()) {
      Array a = p.read();
      for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, a.at(i) * (p.shape().size() == 2 ? 20 : 1));
      p.write(a);
    }
    const auto run = [&](nn::KvCache& cache) {
      Graph g;
      nn::CacheCall call(g, cache, 5);
      const Tensor x = g.input("x", {1, 5, 16});
      const Tensor y = attention(x, {}, &call);
      EXPECT_EQ(y.dtype(), f32);
      Program program = compile(g, {y}, {.assign = call.assign(), .verify = true});
      const auto values = reference::random_vector(5 * 16, 1);
      program.run({{x, std::vector<float>(values.begin(), values.end())}, {call.cached(), 0}});
      return program.fetch(y).values<float>();
    };
    nn::KvCache plain(1, 8), half(1, 8, Device::cpu(), bf16);
    const std::vector<float> expected = run(plain), got = run(half);
    EXPECT_EQ(2 * half.bytes(), plain.bytes()) << kind.name;
    double size = 0, apart = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      size = std::max(size, std::abs(double{expected[i]}));
      apart = std::max(apart, std::abs(double{got[i]} - expected[i]));
    }
    EXPECT_LE(apart, 0.03 * size) << kind.name;
    EXPECT_GT(apart, 1e-5 * size) << kind.name << " is not rounded at all";
  }
}

TEST(KvCache, RefusesMismatchedRows) {
  EXPECT_THROW(nn::KvCache(1, 4, Device::cpu(), i32), DTypeError);
  EXPECT_THROW(nn::KvCache(0, 4), ShapeError);
  EXPECT_THROW(nn::KvCache(1, 0), ShapeError);
  nn::Params params;
  const nn::SelfAttention attention(nn::Path(params) / "attn", 8, 2);
  nn::KvCache cache(1, 4);
  Graph g;
  nn::CacheCall call(g, cache, 2);
  const Tensor x = g.input("x", {1, 2, 8});
  const Tensor y = attention(x, {.cache = &call});
  Program program = compile(g, {y}, {.assign = call.assign()});
  const std::vector<float> values(16);
  EXPECT_NO_THROW(program.run({{x, values}, {call.cached(), std::vector<std::int32_t>{2}}}));
  EXPECT_THROW(program.run({{x, values}, {call.cached(), std::vector<std::int32_t>{3}}}), Error);
  Graph other;
  nn::CacheCall three(other, cache, 3);
  EXPECT_THROW(attention(other.input("x", {1, 2, 8}), {.cache = &three}), ShapeError);
  EXPECT_THROW(attention(other.input("x", {2, 3, 8}), {.cache = &three}), ShapeError);
}

TEST(KvCache, AMissingAssignmentIsNeverSilent) {
  nn::Params params;
  const nn::SelfAttention attention(nn::Path(params) / "attn", 8, 2);
  nn::KvCache cache(1, 4);
  Graph g;
  nn::CacheCall call(g, cache, 2);
  const Tensor x = g.input("x", {1, 2, 8}), y = attention(x, {.cache = &call});
  try {
    compile(g, {y});
    FAIL() << "the program would not extend the cache";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("cache.attn.k"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("not among the assignments"), std::string::npos) << e.what();
  }
  EXPECT_NO_THROW(compile(g, {x + 1})) << "a program without the layer";
  EXPECT_NO_THROW(compile(g, {y}, {.assign = call.assign()}));
}

std::vector<std::string> names_in(const nn::Params& params) {
  std::vector<std::string> names;
  for (const Parameter& p : params.all()) names.push_back(p.name() + " " + p.shape().text());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(GroupedAttention, HasLlamasParameters) {
  nn::Params params;
  const nn::GroupedAttention attention(nn::Path(params) / "self_attn", 16, 4, {.key_heads = 2});
  EXPECT_EQ(names_in(params), (std::vector<std::string>{
                                  "self_attn.k_proj.weight [8, 16]", "self_attn.o_proj.weight [16, 16]",
                                  "self_attn.q_proj.weight [16, 16]", "self_attn.v_proj.weight [8, 16]"}));
}

TEST(LatentAttention, HasDeepSeeksParameters) {
  nn::Params params;
  const nn::LatentAttention plain(nn::Path(params) / "self_attn", 16, 4, {.latent = 6, .rope_width = 2});
  EXPECT_EQ(names_in(params),
            (std::vector<std::string>{
                "self_attn.kv_a_layernorm.weight [6]", "self_attn.kv_a_proj_with_mqa.weight [8, 16]",
                "self_attn.kv_b_proj.weight [32, 6]", "self_attn.o_proj.weight [16, 16]",
                "self_attn.q_proj.weight [24, 16]"}));
  nn::Params more;
  const nn::LatentAttention compressed(
      nn::Path(more) / "self_attn", 16, 4,
      {.latent = 6, .query_latent = 5, .rope_width = 2, .value_width = 3, .bias = true});
  EXPECT_EQ(names_in(more),
            (std::vector<std::string>{
                "self_attn.kv_a_layernorm.weight [6]", "self_attn.kv_a_proj_with_mqa.bias [8]",
                "self_attn.kv_a_proj_with_mqa.weight [8, 16]", "self_attn.kv_b_proj.weight [28, 6]",
                "self_attn.o_proj.bias [16]", "self_attn.o_proj.weight [16, 12]",
                "self_attn.q_a_layernorm.weight [5]", "self_attn.q_a_proj.bias [5]",
                "self_attn.q_a_proj.weight [5, 16]", "self_attn.q_b_proj.weight [24, 5]"}));
}

TEST(AttentionLayers, RefuseSizesThatDoNotFit) {
  nn::Params params;
  const nn::Path at = nn::Path(params) / "attn";
  EXPECT_THROW(nn::SelfAttention(at, 16, 3), ShapeError);
  EXPECT_THROW(nn::GroupedAttention(at, 16, 3), ShapeError);
  EXPECT_THROW(nn::GroupedAttention(at, 16, 4, {.key_heads = 3}), ShapeError);
  EXPECT_THROW(nn::GroupedAttention(at, 16, 4, {.key_heads = 8}), ShapeError);
  EXPECT_THROW(nn::GroupedAttention(at, 16, 0, {.head_width = 4}), ShapeError);
  EXPECT_THROW(nn::LatentAttention(at, 16, 3), ShapeError);
  EXPECT_THROW(nn::LatentAttention(at, 16, 4, {.latent = 0}), ShapeError);
  EXPECT_THROW(nn::LatentAttention(at, 16, 4, {.query_latent = -1}), ShapeError);
  EXPECT_THROW(nn::LatentAttention(at, 16, 4, {.rope_width = 3}), ShapeError);
  EXPECT_THROW(nn::LatentAttention(at, 16, 4, {.head_width = 3}), ShapeError);
  EXPECT_EQ(params.all().size(), 0u);
}

}  // namespace
