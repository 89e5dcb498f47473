// Tests attention of few queries with many keys, as in decoding, on every instruction set. Results are
// compared with the definition in f64. A row's result must be bitwise independent of all other rows.
#define TG_ISA baseline
#include "tests/support/attention_trial.h"

namespace tg::cpu {
namespace {

using Bytes = std::vector<std::byte>;

// The number of keys in a range. It equals the number in backends/cpu/kernels/attention/decode.cpp.
constexpr std::int32_t range_of(int d) {
  return d <= 64 ? 512 : 256;
}

struct Outputs {
  Values o, lse;
  Bytes o_bytes, lse_bytes;
};

// A call with random operands. No query may read keys and values at or beyond the length. They are NaN in
// memory.
struct Decoding {
  explicit Decoding(Trial trial, bool values_in_keys = false, std::uint32_t seed = 5)
      : x(trial.x),
        rows_first(trial.rows_first),
        values_in_keys(values_in_keys),
        q(x.type, x.B, x.H, x.L, x.d, rows_first),
        k(x.type, x.B, x.Hk, x.T, x.d, rows_first),
        v(x.type, x.B, x.Hk, x.T, x.dv, rows_first),
        sink(x.type, 1, 1, 1, x.H, false) {
    std::mt19937 rng(seed);
    std::normal_distribution<double> normal;
    const auto random = [&](std::int64_t n) {
      Values values(static_cast<std::size_t>(n));
      for (double& e : values) e = normal(rng);
      return values;
    };
    in.q = random(x.B * x.H * x.L * x.d), in.k = random(x.B * x.Hk * x.T * x.d),
    in.v = random(x.B * x.Hk * x.T * x.dv);
    if (trial.sink) in.sink = random(x.H), sink.fill(in.sink);
    has_sink = trial.sink;
    write();
  }
  // Writes the numbers of `in` to memory. `in` is rounded to the operands' dtype.
  void write() {
    q.fill(in.q), k.fill(in.k);
    for (std::int64_t row = 0; values_in_keys && row < x.B * x.Hk * x.T; ++row)
      for (std::int64_t e = 0; e < x.dv; ++e) in.v[at(row * x.dv + e)] = in.k[at(row * x.d + e)];
    v.fill(in.v);
    hide(k), hide(v);
    x.q = q.operand(), x.k = k.operand(), x.v = values_in_keys ? k.operand() : v.operand();
    q_memory = std::make_shared<Guarded>(q.bytes), k_memory = std::make_shared<Guarded>(k.bytes);
    v_memory = std::make_shared<Guarded>(v.bytes);
    x.q.data = q_memory->data(), x.k.data = k_memory->data();
    x.v.data = values_in_keys ? k_memory->data() : v_memory->data();
    x.sink = has_sink ? sink.bytes.data() : nullptr;
  }

  Outputs run(const Isa& isa, int threads) {
    Buffer o(x.type, x.B, x.H, x.L, x.dv, rows_first),
        lse(x.type == DType::f64 ? DType::f64 : DType::f32, x.B, x.H, x.L, 1, false);
    x.o = o.operand(), x.lse = lse.bytes.data();
    run_team(threads, isa.forward->scratch(x), [&](Worker& w) { isa.forward->run(x, w); });
    return {o.read(), lse.read(), o.bytes, lse.bytes};
  }

  // Expects results that agree with the definition and are bitwise identical for any number of threads.
  void check() {
    const AttentionResult expected = attention_oracle(x, in);
    for (const Isa& isa : isas()) {
      const Outputs one = run(isa, 1);
      expect_near(one.o, expected.o, tolerance(x.type), std::string(isa.name) + ": o");
      expect_near(one.lse, expected.lse, x.type == DType::f64 ? 1e-12 : 1e-5,
                  std::string(isa.name) + ": lse");
      for (const int threads : {2, 5}) {
        const Outputs other = run(isa, threads);
        ASSERT_EQ(one.o_bytes, other.o_bytes) << isa.name << ", threads " << threads;
        ASSERT_EQ(one.lse_bytes, other.lse_bytes) << isa.name << ", threads " << threads;
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  std::int64_t length(std::int64_t b) const {
    return x.lengths ? static_cast<const std::int32_t*>(x.lengths)[b] : x.T;
  }

  AttentionCall x;
  bool rows_first, values_in_keys, has_sink = false;
  AttentionValues in;
  Buffer q, k, v, sink;
  std::shared_ptr<Guarded> q_memory, k_memory, v_memory;  // memory of the call's operands

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  void hide(Buffer& rows) {
    std::int64_t flat = 0;
    rows.visit([&](std::size_t, auto& place) {
      const std::int64_t j = flat / rows.size % x.T, b = flat / (rows.size * x.T * x.Hk);
      if (j >= length(b)) std::memset(static_cast<void*>(&place), 0xff, sizeof place);
      ++flat;
    });
  }
};

// Each batch entry's length is at the edge of a range.
struct Edges {
  explicit Edges(int d) {
    const std::int32_t range = range_of(d);
    const std::int32_t all[] = {0, 1, range - 1, range, range + 1, 2 * range + 5};
    std::copy(std::begin(all), std::end(all), lengths);
  }
  std::int32_t lengths[6];
  Trial trial(int H, int Hk, int L, int d, int dv, DType type) const {
    Trial s = shape(6, H, Hk, L, lengths[5] + 7, d, dv, type);
    s.x.lengths = lengths;
    return s;
  }
};

TEST(AttentionDecode, AgreesWithTheDefinitionAtTheEdgesOfRanges) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [H, Hk] : {std::pair{2, 2}, {3, 1}, {8, 1}, {32, 1}}) {
      const int d = H == 2 ? 128 : 64;
      SCOPED_TRACE(testing::Message() << name_of(type) << ", " << H << " heads on " << Hk << ", d " << d);
      Decoding(Edges(d).trial(H, Hk, 1, d, d, type)).check();
      if (HasFatalFailure()) return;
    }
}

TEST(AttentionDecode, AcceptsHeadsOfAnySize) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const auto& [d, dv] :
         {std::pair{1, 1}, {7, 40}, {32, 33}, {80, 96}, {96, 80}, {192, 128}, {256, 256}}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << ", d " << d << ", dv " << dv);
      Decoding(Edges(d).trial(5, 1, 1, d, dv, type)).check();
      if (HasFatalFailure()) return;
    }
}

TEST(AttentionDecode, ReadsValuesStoredInTheFirstColumnsOfKeys) {
  const Edges edges(576);  // the trials point to its lengths
  for (const DType type : {DType::f32, DType::bf16, DType::f64})
    for (const int H : {4, 16}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << ", heads " << H);
      Decoding in_keys(edges.trial(H, 1, 1, 576, 512, type), true);
      in_keys.check();
      Decoding apart(edges.trial(H, 1, 1, 576, 512, type));
      apart.in.v = in_keys.in.v;
      apart.write();
      for (const Isa& isa : isas()) {
        EXPECT_EQ(in_keys.run(isa, 1).o_bytes, apart.run(isa, 1).o_bytes) << isa.name;
      }
      if (HasFatalFailure()) return;
    }
}

struct Option {
  const char* name;
  void (*set)(Trial&);
};
const Option options[] = {
    {"causal", [](Trial& s) { s.x.causal = true; }},
    {"top-left causal", [](Trial& s) { s.x.causal = s.x.top_left = true; }},
    {"left window", [](Trial& s) { s.x.window_left = 700; }},
    {"short window", [](Trial& s) { s.x.window_left = 9, s.x.window_right = 0; }},
    {"right window", [](Trial& s) { s.x.window_right = 0; }},
    {"softcap", [](Trial& s) { s.x.softcap = 1.5; }},
    {"sink", [](Trial& s) { s.sink = true; }},
    {"scale", [](Trial& s) { s.x.scale = 0.7; }},
    {"rows first", [](Trial& s) { s.rows_first = true; }},
    {"bf16", [](Trial& s) { s.x.type = DType::bf16; }},
};

TEST(AttentionDecode, OptionsAgreeWithTheDefinitionInAllPairs) {
  const Edges edges(64);
  for (const Option& a : options)
    for (const Option& b : options)
      for (const int L : {1, 3}) {
        SCOPED_TRACE(testing::Message() << a.name << " and " << b.name << ", queries " << L);
        Trial s = edges.trial(3, 1, L, 24, 16, DType::f32);
        a.set(s), b.set(s);
        Decoding(s).check();
        if (HasFatalFailure()) return;
      }
}

TEST(AttentionDecode, AcceptsLengthsOfBothTypesAndNone) {
  const std::int64_t lengths[] = {0, 511, 513};
  Decoding wide(with(shape(3, 2, 1, 2, 600, 64, 64), [](Trial& s) { s.x.causal = true; }));
  wide.x.lengths = lengths, wide.x.lengths_are_i64 = true;
  wide.check();
  Decoding(shape(1, 4, 2, 8, 1030, 64, 64)).check();
  Decoding(with(shape(2, 4, 4, 3, 2, 64, 64), [](Trial& s) { s.x.causal = true; })).check();
}

// All scores of a row are scaled by a power of two. The largest score determines this power. It must be found
// at any position.
TEST(AttentionDecode, OneLargeScoreIsFoundAtEveryKey) {
  std::vector<std::int32_t> places = {0, 1, 15, 16, 127, 128, 511, 512, 513, 1023, 1024, 1029};
  for (const double size : {40., -40.}) {  // larger than all other scores, or smaller
    Decoding s(shape(static_cast<int>(places.size()), 2, 1, 1, 1030, 32, 16, DType::f64));
    for (std::int64_t b = 0; b < s.x.B; ++b)
      for (std::int64_t e = 0; e < 32; ++e) {
        double& key =
            s.in.k[static_cast<std::size_t>((b * 1030 + places[static_cast<std::size_t>(b)]) * 32 + e)];
        key = size * s.in.q[static_cast<std::size_t>(b * 64 + e)];
      }
    s.write();
    s.check();
  }
}

TEST(AttentionDecode, VisibleNaNsStayNaN) {
  Decoding s(shape(1, 2, 2, 1, 600, 64, 64));
  s.in.k[std::size_t{(600 + 530) * 64}] = std::numeric_limits<double>::quiet_NaN();  // row of the second head
  s.write();
  for (const Isa& isa : isas()) {
    const Outputs out = s.run(isa, 2);
    EXPECT_TRUE(std::isfinite(out.lse[0]) && std::isfinite(out.o[0])) << isa.name;
    EXPECT_TRUE(std::isnan(out.lse[1]) && std::isnan(out.o[64])) << isa.name;
  }
}

// The bytes of one batch entry of an operand. They are contiguous.
Bytes entry(const Bytes& all, std::int64_t B, std::int64_t b) {
  const auto size = static_cast<std::ptrdiff_t>(all.size()) / B;
  return {all.begin() + b * size, all.begin() + (b + 1) * size};
}

TEST(AttentionDecode, ARowMatchesBitwiseInAnyBatch) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const int H : {2, 24}) {  // with 24 rows, bf16 is converted; with 2 rows, it is not
      Edges edges(64);
      Trial trial = edges.trial(H, 2, 1, 64, 48, type);
      trial.sink = true, trial.x.causal = true, trial.x.window_left = 900;
      Decoding batch(trial);
      for (const Isa& isa : isas()) {
        const Outputs together = batch.run(isa, 5);
        for (std::int64_t b = 0; b < batch.x.B; ++b) {
          Decoding alone = batch;
          alone.x.B = 1, alone.x.lengths = edges.lengths + b;
          for (AttentionCall::TensorView* a : {&alone.x.q, &alone.x.k, &alone.x.v})
            a->data =
                static_cast<std::byte*>(a->data) + b * a->batch * static_cast<std::int64_t>(size_of(type));
          Buffer o(type, 1, H, 1, 48, false), lse(DType::f32, 1, H, 1, 1, false);
          alone.x.o = o.operand(), alone.x.lse = lse.bytes.data();
          run_team(2, isa.forward->scratch(alone.x), [&](Worker& w) { isa.forward->run(alone.x, w); });
          EXPECT_EQ(o.bytes, entry(together.o_bytes, batch.x.B, b)) << isa.name << ", entry " << b;
          EXPECT_EQ(lse.bytes, entry(together.lse_bytes, batch.x.B, b)) << isa.name << ", entry " << b;
        }
      }
    }
}

// The second cache contains the same keys in a different memory order. There is spare room after the keys.
TEST(AttentionDecode, ARowMatchesBitwiseInAnyCache) {
  const std::int32_t length[] = {1025};
  for (const DType type : {DType::f32, DType::bf16}) {
    Trial trial = shape(1, 6, 2, 1, 1025, 64, 40, type);
    trial.x.lengths = length;
    Decoding tight(trial);
    trial.x.T = 5000, trial.rows_first = true;
    Decoding roomy(trial);
    roomy.in.q = tight.in.q;
    for (std::int64_t h = 0; h < 2; ++h) {
      std::copy_n(tight.in.k.begin() + h * 1025 * 64, 1025 * 64, roomy.in.k.begin() + h * 5000 * 64);
      std::copy_n(tight.in.v.begin() + h * 1025 * 40, 1025 * 40, roomy.in.v.begin() + h * 5000 * 40);
    }
    roomy.write();
    for (const Isa& isa : isas()) {
      const Outputs a = tight.run(isa, 1), b = roomy.run(isa, 2);
      EXPECT_EQ(a.o, b.o) << isa.name;
      EXPECT_EQ(a.lse_bytes, b.lse_bytes) << isa.name;
    }
  }
}

// Computes several queries of a sequence in one call, like a chunk of a prompt. Then computes the same
// queries one at a time.
TEST(AttentionDecode, AQueryMatchesBitwiseWithAnyLaterQueries) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const std::int32_t last : {7, 514, 1027}) {
      const std::int32_t length[] = {last};
      Trial trial = shape(1, 4, 1, 4, 1030, 64, 64, type);
      trial.x.lengths = length, trial.x.causal = true, trial.x.window_left = 500;
      Decoding four(trial);
      for (const Isa& isa : isas()) {
        const Outputs together = four.run(isa, 3);
        for (std::int64_t i = 0; i < 4; ++i) {
          const std::int32_t shorter[] = {static_cast<std::int32_t>(last - 3 + i)};
          trial.x.L = 1, trial.x.lengths = shorter;
          Decoding one(trial);
          one.in.k = four.in.k, one.in.v = four.in.v;
          for (std::int64_t h = 0; h < 4; ++h)
            std::copy_n(four.in.q.begin() + (h * 4 + i) * 64, 64, one.in.q.begin() + h * 64);
          one.write();
          const Outputs alone = one.run(isa, 1);
          for (std::int64_t h = 0; h < 4; ++h) {
            EXPECT_EQ(alone.lse[static_cast<std::size_t>(h)],
                      together.lse[static_cast<std::size_t>(h * 4 + i)]);
            for (std::int64_t e = 0; e < 64; ++e)
              ASSERT_EQ(alone.o[static_cast<std::size_t>(h * 64 + e)],
                        together.o[static_cast<std::size_t>((h * 4 + i) * 64 + e)])
                  << isa.name << ", query " << i;
          }
        }
      }
    }
}

}  // namespace
}  // namespace tg::cpu
