// gradcheck over ranks: the numbers it draws, its steps and its bounds, compared with plain code; and that
// the result of one rank is that of all.
#include "autograd/gradcheck_ranks.h"

#include <cmath>

#include <tilegrad/core/base/rng.h>
#include <tilegrad/ops/ranks.h>
#include "tests/support/host_function.h"
#include "tests/support/ranks.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using namespace tg::testing;
using Tensors = std::vector<Tensor>;

std::vector<Result> checked(const RankCase& c, Communicator& ranks, const Options& o) {
  return check_ranks(c, std::shared_ptr<Communicator>(std::shared_ptr<void>(), &ranks), o);
}

Options in(DType dtype) {
  Options o;
  o.dtypes = {dtype}, o.seed = 7;
  return o;
}

// Element i of a tensor of a rank; of all ranks: −1.
double drawn(std::uint64_t seed, int rank, std::uint32_t tensor, std::uint32_t i) {
  const PhiloxBlock b = philox({i, 0, 0, 0}, node_key(seed, static_cast<std::uint64_t>(rank + 1), tensor));
  const double size = 0.5 + uniform(b[0], b[1]);
  return b[2] % 2 == 1 ? -size : size;
}

// y = x⁵ on each rank for itself, with a gradient that is off by a share on one rank.
struct Fifth {
  std::shared_ptr<HostFunction> host = std::make_shared<HostFunction>();
  Point first_x, first_r;
  double share = 0, error = 0;  // of the gradient; of element 1 of y in dtypes other than f64
  RankCase c;
  explicit Fifth(bool is_input_replicated = false, bool is_output_replicated = false) {
    host->outputs = [this](const Point& x, DType t) {
      if (first_x.empty()) first_x = x;
      Point y = x;
      for (double& e : y[0]) e = e * e * e * e * e;
      if (t != f64) y[0][1] += error;
      return y;
    };
    host->gradients = [this](const Point& x, const Point& r, DType) {
      if (first_r.empty()) first_r = r;
      Point z = r;
      for (std::size_t k = 0; k < r[0].size(); ++k) z[0][k] *= 5 * std::pow(x[0][k], 4) * (1 + share);
      return z;
    };
    c = {case_of(host, {{{3}}}, {{3}}), is_input_replicated, is_output_replicated};
  }
};

TEST(RankChecks, DrawNumbersForEachRankOrTheSameForAll) {
  run_ranks(2, [](Communicator& ranks) {
    for (const bool of_input : {false, true})
      for (const bool of_output : {false, true}) {
        Fifth f(of_input, of_output);
        checked(f.c, ranks, in(f64));
        for (std::uint32_t i = 0; i < 3; ++i) {
          EXPECT_EQ(f.first_x.at(0)[i], drawn(7, of_input ? -1 : ranks.rank(), 0, i));
          EXPECT_EQ(f.first_r.at(0)[i], drawn(7, of_output ? -1 : ranks.rank(), 1, i));
        }
      }
  });
}

// A quotient of x⁵ is off by 4·h⁴, for h = 0.1·max(1, |x|). All ranks report the worst of any.
TEST(RankChecks, CompareWithFourPointQuotientsWithinTheTolerance) {
  run_ranks(2, [](Communicator& ranks) {
    for (const double share : {0., 1e-3, -0.02}) {
      Fifth f;
      f.share = ranks.rank() == 1 ? share : 0;
      Options o = in(f64);
      o.h = 0.1, o.tol = {.rtol = 1e-3, .atol = 1e-4};
      const std::vector<Result> results = checked(f.c, ranks, o);
      ASSERT_EQ(results.size(), 1u);
      const Result& r = results[0];
      double most = 0, worst = 0, largest = 0, h_of_worst = 0;
      int rank_of_worst = 0;
      std::uint32_t element = 0;
      for (int rank = 0; rank < 2; ++rank)
        for (std::uint32_t i = 0; i < 3; ++i) {
          const double x = drawn(7, rank, 0, i), w = drawn(7, rank, 1, i),
                       h = 0.1 * std::max(1.0, std::abs(x));
          const double numeric = w * (5 * std::pow(x, 4) - 4 * std::pow(h, 4)),
                       analytic = w * 5 * std::pow(x, 4) * (rank == 1 ? 1 + share : 1);
          const double ratio = std::abs(analytic - numeric) / (1e-4 + 1e-3 * std::abs(numeric));
          largest = std::max(largest, std::abs(analytic - numeric));
          most = std::max(most, std::abs((analytic - numeric) / numeric));
          if (ratio > worst) worst = ratio, h_of_worst = h, rank_of_worst = rank, element = i;
        }
      EXPECT_EQ(r.checked, 6);
      EXPECT_NEAR(r.ratio, worst, 1e-8 * worst);
      EXPECT_NEAR(r.max_abs, largest, 1e-9);
      EXPECT_NEAR(r.max_rel, most, 1e-9);
      EXPECT_EQ(r.worst.h, h_of_worst);
      EXPECT_EQ(r.worst.where,
                "rank " + std::to_string(rank_of_worst) + ", input 0 [" + std::to_string(element) + "]");
      EXPECT_EQ(r.status, worst > 1 ? Status::mismatch : Status::ok);
      EXPECT_EQ(r.dtype, f64);
      EXPECT_EQ(r.text(), "function/case");
    }
  });
}

// A replicated input moves on all ranks at once, and a replicated output counts once.
TEST(RankChecks, MoveReplicatedInputsTogetherAndCountReplicatedOutputsOnce) {
  run_ranks(3, [](Communicator& ranks) {
    for (const bool of_input : {false, true})
      for (const bool of_output : {false, true}) {
        // The loss of each rank's own input: a gradient of its own cotangents.
        const RankCase c{{"ranks",
                          "case",
                          {{{2}}},
                          [=](DType, Device) {
                            return Callable{{}, [=](std::span<const Tensor> x) {
                                              Tensor in = x[0];
                                              if (of_input) in = spread_ranks({in}, 3)[0];
                                              return of_output ? sum_ranks({in * in}, 3) : Tensors{in * in};
                                            }};
                          }},
                         of_input,
                         of_output};
        Options o;
        o.seed = 3;
        const auto results = checked(c, ranks, o);
        ASSERT_EQ(results.size(), 4u);
        for (const Result& r : results) {
          EXPECT_EQ(r.status, Status::ok) << r.note << " " << r.worst.where << " " << r.ratio;
          // A gradient; or a result, too.
          EXPECT_EQ(r.checked, 3 * (r.dtype == f64 ? 2 : 4)) << name_of(r.dtype);
        }
      }
  });
}

TEST(RankChecks, BoundsOfOtherDtypesAreThoseOfTheDocumentation) {
  run_ranks(2, [](Communicator& ranks) {
    for (const DType dtype : {f32, bf16, f16}) {
      Fifth plain;
      // The program that is checked: the loss, y and its gradient.
      Graph g;
      const Tensor x = g.input("x", {3}, dtype), w = g.input("w", {3}, dtype);
      const Tensor y = plain.c.f.make(dtype, Device::cpu()).call(std::vector{x})[0], loss = sum(w * y);
      const double steps =
          static_cast<double>(compile(g, {loss, y, gradients(loss, {x})[0]}, {.threads = 1}).steps().size());
      const double u = dtype == f32 ? 0x1p-24 : dtype == bf16 ? 0x1p-8 : 0x1p-11;
      double m = 1;
      for (int rank = 0; rank < 2; ++rank)
        for (std::uint32_t i = 0; i < 3; ++i)
          m = std::max(m, std::abs(std::pow(rounded_to(dtype, drawn(7, rank, 0, i)), 5)));
      const double bound = 2 * u * m + 2 * (steps + 1) * 0x1p-24 * m;
      for (const double share : {0.7, 3.0}) {
        Fifth f;
        const double exact = std::pow(rounded_to(dtype, drawn(7, 1, 0, 1)), 5);
        f.error = ranks.rank() == 1 ? share * bound : 0;
        const Result r = checked(f.c, ranks, in(dtype)).at(0);
        EXPECT_EQ(r.checked, 2 * 6);
        const double error = std::abs(rounded_to(dtype, exact + share * bound) - exact);
        EXPECT_GE(r.ratio, error / bound * (1 - 1e-9));
        if (share > 1) {
          EXPECT_NEAR(r.ratio, error / bound, 1e-9 * r.ratio);
          EXPECT_EQ(r.worst.where, "rank 1, output 0 [1]");
          EXPECT_EQ(r.status, Status::mismatch);
          EXPECT_NEAR(r.max_rel, error / m, 1e-9 * r.max_rel);
        } else {
          EXPECT_EQ(r.status, Status::ok) << r.ratio;
        }
      }
    }
  });
}

TEST(RankChecks, RefuseParametersAndLeaveOutHalfTypesOnRequest) {
  run_ranks(2, [](Communicator& ranks) {
    Fifth f;
    f.c.in_half_types = false;
    std::string dtypes;
    for (const Result& r : checked(f.c, ranks, {})) dtypes += std::string(name_of(r.dtype)) + " ";
    EXPECT_EQ(dtypes, "f64 f32 ");
    f.c.f.make = [](DType, Device) {
      return Callable{{Parameter("w", Array({2}, f64))},
                      [](std::span<const Tensor> x) { return Tensors{x[0]}; }};
    };
    try {
      checked(f.c, ranks, in(f64));
      ADD_FAILURE() << "parameters were accepted";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()),
                "[gradcheck] function/case has parameters, which are not checked over ranks");
    }
  });
}

TEST(RankChecks, ReplicatedTensorsAreComparedBitwise) {
  run_ranks(3, [](Communicator& ranks) {
    const auto notes = [&](int rank, std::size_t element, bool of_gradient) {
      const auto host = std::make_shared<HostFunction>();
      const bool is_off = ranks.rank() == rank;
      host->outputs = [=](const Point& x, DType) {
        Point y = x;
        if (is_off && !of_gradient) y[0][element] *= 1 + 0x1p-52;
        return y;
      };
      host->gradients = [=](const Point&, const Point& r, DType) {
        Point z = r;
        if (is_off && of_gradient) z[0][element] *= 1 + 0x1p-52;
        return z;
      };
      const RankCase c{case_of(host, {{{4}}}, {{4}}), true, true};
      const Result r = checked(c, ranks, in(f64)).at(0);
      EXPECT_EQ(r.status, rank < 0 ? Status::ok : Status::mismatch);
      return r.note;
    };
    const std::string of_rank_0 = " is replicated, but rank 1 has other bits than rank 0; ";
    EXPECT_EQ(notes(-1, 0, false), "");
    EXPECT_EQ(notes(1, 3, false), "output 0 is replicated, but rank 1 has other bits than rank 0");
    EXPECT_EQ(notes(2, 0, false), "output 0 is replicated, but rank 2 has other bits than rank 0");
    EXPECT_EQ(notes(0, 2, false),
              "output 0" + of_rank_0 + "output 0 is replicated, but rank 2 has other bits than rank 0");
    EXPECT_EQ(notes(2, 1, true),
              "the gradient of input 0 is replicated, but rank 2 has other bits than rank 0");
  });
}

// Notes are exchanged in 160 bytes, and names of elements in 96.
TEST(RankChecks, LongNotesAreCut) {
  run_ranks(4, [](Communicator& ranks) {
    const auto host = std::make_shared<HostFunction>();
    const double factor = ranks.rank() == 0 ? 1 + 0x1p-52 : 1;
    host->outputs = [=](const Point& x, DType) { return Point{{x[0][0] * factor}}; };
    host->gradients = [](const Point&, const Point& r, DType) { return r; };
    const RankCase c{case_of(host, {{{1}}}, {{1}}), true, true};
    const Result r = checked(c, ranks, in(f64)).at(0);
    std::string all;
    for (const int rank : {1, 2, 3})
      all += (all.empty() ? "" : "; ") + ("output 0 is replicated, but rank " + std::to_string(rank)) +
             " has other bits than rank 0";
    ASSERT_GT(all.size(), 160u);
    EXPECT_EQ(r.note, all.substr(0, 159));
  });
}

TEST(RankChecks, CoverEveryOpOnRowsColumnsAndLists) {
  std::string text;
  for (const RankCase& c : rank_cases(3)) {
    text += c.f.text() + ":";
    for (const SampleInput& i : c.f.inputs) text += " " + i.shape.text();
    text += c.is_input_replicated ? " replicated in" : "";
    text += c.is_output_replicated ? " replicated out" : "";
    text += c.in_half_types ? "\n" : " wide\n";
  }
  const std::string list = " [6, 3] [3] [3, 1, 2]";
  EXPECT_EQ(
      text,
      "sum_ranks/rows: [6, 3] replicated out\nsum_ranks/list:" + list +
          " replicated out\nsum_ranks/wide: [6, 3] replicated out\nspread_ranks/list:" + list +
          " replicated in\ngather_ranks/rows: [6, 3]\ngather_ranks/list:" + list +
          "\ngather_ranks/columns: [3, 6]\nscatter_sum/rows: [6, 3]\nscatter_sum/list:" + list +
          "\nscatter_sum/columns, wide: [3, 6]\nexchange_ranks/rows: [6, 3]\nexchange_ranks/list:" + list +
          "\nexchange_ranks/columns: [3, 6]\nshift_ranks/to the next: [6, 3]\nshift_ranks/list, back:" +
          list + "\nown_piece/rows: [6, 3] replicated in\nown_piece/list:" + list +
          " replicated in\nown_piece/columns: [3, 6] replicated in\n"
          "ranks/several ops: [6, 3] replicated in replicated out wide\n");
}

// Each case calls the op that it names, as a list of results.
TEST(RankChecks, CasesCallTheirOps) {
  for (const RankCase& c : rank_cases(2)) {
    Graph g;
    Tensors x;
    for (const SampleInput& i : c.f.inputs) x.push_back(g.input("x", i.shape, f64));
    const Tensors y = c.f.make(f64, Device::cpu()).call(x);
    EXPECT_EQ(y.size(), c.f.inputs.size()) << c.f.text();
    bool calls = false;
    for (const Node& n : g.nodes()) calls |= n.op->name == c.f.owner;
    EXPECT_TRUE(calls || c.f.owner == "ranks") << c.f.text();
    const bool by_columns = c.f.name.starts_with("columns");
    if (c.f.owner == "gather_ranks") {
      EXPECT_EQ(y[0].shape(), by_columns ? (Shape{3, 8}) : (Shape{8, 3}));
    }
    if (c.f.owner == "scatter_sum" || c.f.owner == "own_piece") {
      EXPECT_EQ(y[0].shape(), by_columns ? (Shape{3, 2}) : (Shape{2, 3})) << c.f.text();
    }
  }
}

}  // namespace
