// Tests gradcheck over ranks. Plain code checks the random numbers, steps and bounds of gradcheck. All ranks
// must report the same result.
#include "autograd/gradcheck/ranks.h"

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

// Returns element i of a rank's tensor. Rank −1 means a tensor that is replicated on all ranks.
double drawn(std::uint64_t seed, int rank, std::uint32_t tensor, std::uint32_t i) {
  const PhiloxBlock b = philox({i, 0, 0, 0}, node_key(seed, static_cast<std::uint64_t>(rank + 1), tensor));
  const double size = 0.5 + uniform(b[0], b[1]);
  return b[2] % 2 == 1 ? -size : size;
}

// Each rank computes y = factor·x⁵ locally for one or two tensors x. On one rank, the gradient has a relative
// error of `share`.
struct Fifth {
  std::shared_ptr<HostFunction> host = std::make_shared<HostFunction>();
  Point first_x, first_r;
  double factor = 1, share = 0;
  // An error in dtypes other than f64. It is added to element `element` of the gradient or of y.
  double error = 0;
  bool is_of_gradient = false;
  std::size_t number = 0, element = 0;
  RankCase c;
  explicit Fifth(bool is_input_replicated = false, bool is_output_replicated = false, bool is_pair = false) {
    host->outputs = [this](const Point& x, DType t) {
      if (first_x.empty()) first_x = x;
      Point y = x;
      for (Values& v : y)
        for (double& e : v) e = value(e);
      if (t != f64 && !is_of_gradient) y[number][element] += error;
      return y;
    };
    host->gradients = [this](const Point& x, const Point& r, DType t) {
      if (first_r.empty()) first_r = r;
      Point z = r;
      for (std::size_t i = 0; i < r.size(); ++i)
        for (std::size_t k = 0; k < r[i].size(); ++k) z[i][k] = gradient(x[i][k], r[i][k]) * (1 + share);
      if (t != f64 && is_of_gradient) z[number][element] += error;
      return z;
    };
    const std::vector<Shape> shapes = is_pair ? std::vector<Shape>{{3}, {2}} : std::vector<Shape>{{3}};
    std::vector<SampleInput> inputs;
    for (const Shape& s : shapes) inputs.push_back({s});
    c = {case_of(host, inputs, shapes), is_input_replicated, is_output_replicated};
  }
  double value(double x) const { return factor * x * x * x * x * x; }
  double gradient(double x, double r) const { return r * 5 * factor * x * x * x * x; }
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
        // The function is called once at this point, and at four points for each element that changes.
        EXPECT_EQ(f.host->seen.size(), 1u + 3 * 4 * (of_input ? 1 : 2));
      }
  });
}

// The error of a quotient of x⁵ is 4·h⁴, where h = 0.1·max(1, |x|). All ranks report the largest error of any
// rank.
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

// A replicated input changes on all ranks at the same time. A replicated output counts once.
TEST(RankChecks, MoveReplicatedInputsTogetherAndCountReplicatedOutputsOnce) {
  run_ranks(3, [](Communicator& ranks) {
    for (const bool of_input : {false, true})
      for (const bool of_output : {false, true}) {
        // Each rank's loss depends only on the rank's own input. So its gradient depends only on the rank's
        // own cotangents.
        const RankCase c{{"ranks",
                          "case",
                          {{{2}}},
                          [=](DType, Device) {
                            return Callable{{}, [=](std::span<const Tensor> x) {
                                              Tensor in = x[0];
                                              if (of_input) in = all_reduce_gradient({in}, 3)[0];
                                              return of_output ? all_reduce({in * in}, 3) : Tensors{in * in};
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
          // The gradient is checked. In dtypes other than f64, the result is also checked.
          EXPECT_EQ(r.checked, 3 * (r.dtype == f64 ? 2 : 4)) << name_of(r.dtype);
          if (of_input && of_output) {  // all ranks have equal errors, so the first is reported
            EXPECT_TRUE(r.worst.where.starts_with("rank 0, ")) << r.worst.where;
          }
        }
      }
  });
}

TEST(RankChecks, BoundsOfOtherDtypesMatchTheDocumentation) {
  run_ranks(2, [](Communicator& ranks) {
    for (const DType dtype : {f32, bf16, f16})
      for (const double factor : {1.0, 0.02}) {  // with values above and below 1
        Fifth f(false, false, true);
        f.factor = factor;
        // The checked program: the loss, results and gradients.
        Graph g;
        const Tensors x{g.input("x", {3}, dtype), g.input("x", {2}, dtype)},
            w{g.input("w", {3}, dtype), g.input("w", {2}, dtype)},
            y = f.c.f.make(dtype, Device::cpu()).call(x);
        const Tensor loss = sum(w[0] * y[0]) + sum(w[1] * y[1]);
        const Tensors z = gradients(loss, x);
        const double steps =
            static_cast<double>(compile(g, {loss, y[0], y[1], z[0], z[1]}, {.threads = 1}).steps().size());
        const double u = dtype == f32 ? 0x1p-24 : dtype == bf16 ? 0x1p-8 : 0x1p-11;
        Point exact[2];  // results and gradients of each rank
        Values most(4, 1.0);
        for (int rank = 0; rank < 2; ++rank)
          for (std::uint32_t t = 0; t < 4; ++t) {
            exact[rank].emplace_back();
            for (std::uint32_t i = 0; i < (t % 2 == 0 ? 3u : 2u); ++i) {
              const double x_i = rounded_to(dtype, drawn(7, rank, t % 2, i)),
                           w_i = rounded_to(dtype, drawn(7, rank, 2 + t % 2, i));
              exact[rank][t].push_back(t < 2 ? f.value(x_i) : f.gradient(x_i, w_i));
              most[t] = std::max(most[t], std::abs(exact[rank][t][i]));
            }
          }
        for (std::size_t faulty = 0; faulty < 4; ++faulty)
          for (std::size_t element = 0; element < exact[0][faulty].size(); ++element)
            for (const double share : {0.7, 3.0}) {
              const auto bound = [&](std::size_t t) {
                return 2 * u * most[t] + 2 * (steps + 1) * 0x1p-24 * most[t];
              };
              const double error = share * bound(faulty);
              double ratio = 0, relative = 0;
              for (int rank = 0; rank < 2; ++rank)
                for (std::size_t t = 0; t < 4; ++t)
                  for (std::size_t i = 0; i < exact[rank][t].size(); ++i) {
                    const double e = exact[rank][t][i];
                    const bool is_off = rank == 1 && t == faulty && i == element;
                    const double distance = std::abs(rounded_to(dtype, is_off ? e + error : e) - e);
                    ratio = std::max(ratio, distance / bound(t));
                    relative = std::max(relative, distance / most[t]);
                  }
              f.is_of_gradient = faulty >= 2, f.number = faulty % 2, f.element = element;
              f.error = ranks.rank() == 1 ? error : 0;
              const Result r = checked(f.c, ranks, in(dtype)).at(0);
              EXPECT_EQ(r.checked, 2 * 10);
              EXPECT_NEAR(r.ratio, ratio, 1e-9 * ratio) << faulty << " " << element;
              EXPECT_NEAR(r.max_rel, relative, 1e-9 * relative);
              EXPECT_EQ(r.status, ratio > 1 ? Status::mismatch : Status::ok);
              EXPECT_EQ(r.worst.h, 0);
              if (share > 1) {
                EXPECT_EQ(r.worst.where, "rank 1, " + std::string(faulty < 2 ? "output " : "input ") +
                                             std::to_string(faulty % 2) + " [" + std::to_string(element) +
                                             "]");
              }
            }
      }
  });
}

// If all ranks are equally close to their bounds, the first rank is reported.
TEST(RankChecks, TheFirstOfEqualRanksIsReported) {
  run_ranks(2, [](Communicator& ranks) {
    const RankCase c{{"ranks", "copy", {{{2}}}, [](DType, Device) {
                        return Callable{{}, [](std::span<const Tensor> x) { return Tensors{copy(x[0])}; }};
                      }}};
    const Result r = checked(c, ranks, in(f32)).at(0);
    EXPECT_EQ(r.ratio, 0);
    EXPECT_EQ(r.worst.where, "rank 0, output 0 [0]");
    EXPECT_EQ(r.worst.analytic, rounded_to(f32, drawn(7, 0, 0, 0)));
  });
}

TEST(RankChecks, RefuseParametersAndOmit16BitTypesOnRequest) {
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

// The slope of each element depends on all other elements. They keep their original values while this element
// changes.
TEST(RankChecks, ElementsMoveOneByOne) {
  run_ranks(2, [](Communicator& ranks) {
    const RankCase c{{"ranks", "products", {{{3}}, {{2}}}, [](DType, Device) {
                        return Callable{{}, [](std::span<const Tensor> x) {
                                          return Tensors{x[0] * sum(x[1]), x[1] * sum(x[0] * x[0])};
                                        }};
                      }}};
    const Result r = checked(c, ranks, in(f64)).at(0);
    EXPECT_EQ(r.status, Status::ok) << r.worst.where;
    EXPECT_EQ(r.checked, 2 * 5);
  });
}

TEST(RankChecks, ReplicatedTensorsAreComparedBitwise) {
  run_ranks(3, [](Communicator& ranks) {
    const auto notes_in = [&](DType dtype, int rank, std::size_t element, bool of_gradient) {
      const auto host = std::make_shared<HostFunction>();
      const bool is_off = ranks.rank() == rank;
      const double factor = dtype == f64 ? 1 + 0x1p-52 : 1 + 0x1p-23;
      host->outputs = [=](const Point& x, DType) {
        Point y = x;
        if (is_off && !of_gradient) y[0][element] *= factor;
        return y;
      };
      host->gradients = [=](const Point&, const Point& r, DType) {
        Point z = r;
        if (is_off && of_gradient) z[0][element] *= factor;
        return z;
      };
      const RankCase c{case_of(host, {{{4}}}, {{4}}), true, true};
      const Result r = checked(c, ranks, in(dtype)).at(0);
      EXPECT_EQ(r.status, rank < 0 ? Status::ok : Status::mismatch);
      return r.note;
    };
    const auto notes = [&](int rank, std::size_t element, bool of_gradient) {
      const std::string all = notes_in(f64, rank, element, of_gradient);
      EXPECT_EQ(notes_in(f32, rank, element, of_gradient), all);
      return all;
    };
    const std::string of_rank_0 = " is replicated, but rank 1 differs bitwise from rank 0; ";
    EXPECT_EQ(notes(-1, 0, false), "");
    EXPECT_EQ(notes(1, 3, false), "output 0 is replicated, but rank 1 differs bitwise from rank 0");
    EXPECT_EQ(notes(2, 0, false), "output 0 is replicated, but rank 2 differs bitwise from rank 0");
    EXPECT_EQ(notes(0, 2, false),
              "output 0" + of_rank_0 + "output 0 is replicated, but rank 2 differs bitwise from rank 0");
    EXPECT_EQ(notes(2, 1, true),
              "the gradient of input 0 is replicated, but rank 2 differs bitwise from rank 0");
  });
}

// Ranks exchange 160 bytes of a note and 96 bytes of an element's name.
TEST(RankChecks, LongNotesAreTruncated) {
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
             " differs bitwise from rank 0";
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
  EXPECT_EQ(text,
            "all_reduce/rows: [6, 3] replicated out\nall_reduce/list:" + list +
                " replicated out\nall_reduce/wide: [6, 3] replicated out\nall_reduce_gradient/list:" + list +
                " replicated in\nall_gather/rows: [6, 3]\nall_gather/list:" + list +
                "\nall_gather/columns: [3, 6]\nreduce_scatter/rows: [6, 3]\nreduce_scatter/list:" + list +
                "\nreduce_scatter/columns, wide: [3, 6]\nall_to_all/rows: [6, 3]\nall_to_all/list:" + list +
                "\nall_to_all/columns: [3, 6]\nppermute/to the next: [6, 3]\nppermute/list, back:" + list +
                "\nlocal_shard/rows: [6, 3] replicated in\nlocal_shard/list:" + list +
                " replicated in\nlocal_shard/columns: [3, 6] replicated in\n"
                "ranks/several ops: [6, 3] replicated in replicated out wide\n");
}

// The name of each case contains its call.
TEST(RankChecks, CasesCallTheirOps) {
  const ReduceOptions wide{.wide = true};
  const std::pair<const char*, std::function<Tensors(const Tensors&)>> calls[] = {
      {"all_reduce/rows", [](auto& x) { return all_reduce(x, 3); }},
      {"all_reduce/list", [](auto& x) { return all_reduce(x, 3); }},
      {"all_reduce/wide", [&](auto& x) { return all_reduce(x, 3, wide); }},
      {"all_reduce_gradient/list", [](auto& x) { return all_reduce_gradient(x, 3); }},
      {"all_gather/rows", [](auto& x) { return all_gather(x, 3, 0); }},
      {"all_gather/list", [](auto& x) { return all_gather(x, 3, 0); }},
      {"all_gather/columns", [](auto& x) { return all_gather(x, 3, 1); }},
      {"reduce_scatter/rows", [](auto& x) { return reduce_scatter(x, 3, 0); }},
      {"reduce_scatter/list", [](auto& x) { return reduce_scatter(x, 3, 0); }},
      {"reduce_scatter/columns, wide", [&](auto& x) { return reduce_scatter(x, 3, 1, wide); }},
      {"all_to_all/rows", [](auto& x) { return all_to_all(x, 3, 0); }},
      {"all_to_all/list", [](auto& x) { return all_to_all(x, 3, 0); }},
      {"all_to_all/columns", [](auto& x) { return all_to_all(x, 3, 1); }},
      {"ppermute/to the next", [](auto& x) { return ppermute(x, 3, 1); }},
      {"ppermute/list, back", [](auto& x) { return ppermute(x, 3, -1); }},
      {"local_shard/rows", [](auto& x) { return local_shard(x, 3, 0); }},
      {"local_shard/list", [](auto& x) { return local_shard(x, 3, 0); }},
      {"local_shard/columns", [](auto& x) { return local_shard(x, 3, 1); }},
      {"ranks/several ops", [](auto& x) {
         const Tensor piece = local_shard({tanh(x[0])}, 3)[0];
         const Tensors shifted = ppermute({piece * piece}, 3, 1);
         return all_reduce({all_gather(shifted, 3)[0] * all_reduce_gradient(x, 3)[0]}, 3);
       }}};
  const std::vector<RankCase> cases = rank_cases(3);
  ASSERT_EQ(cases.size(), std::size(calls));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto recorded = [&](const std::function<Tensors(const Tensors&)>& call) {
      Graph g;
      Tensors x;
      for (const SampleInput& in : cases[i].f.inputs) x.push_back(g.input("x", in.shape, bf16));
      EXPECT_EQ(call(x).size(), x.size()) << calls[i].first;
      return g.hash();
    };
    EXPECT_EQ(cases[i].f.text(), calls[i].first);
    EXPECT_EQ(recorded([&](const Tensors& x) { return cases[i].f.make(bf16, Device::cpu()).call(x); }),
              recorded(calls[i].second))
        << calls[i].first;
  }
}

}  // namespace
