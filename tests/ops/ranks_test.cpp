// Tests collectives over 1 to 4 processes. Covers values, gradients, bitwise equality, and refused calls.
#include "tests/support/ranks.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <tilegrad/tilegrad.h>
#include "autograd/gradcheck/ranks.h"
#include "core/graph/op_attrs.h"

namespace tg {
extern const Op &all_reduce_op, &all_gather_op, &reduce_scatter_op, &all_to_all_op, &ppermute_op,
    &local_shard_op;
}  // namespace tg

namespace {

using namespace tg;
using Values = std::vector<double>;

// Returns element i of x on a rank. All elements on all ranks are different.
double element(int rank, std::int64_t i) {
  return std::sin(1.0 + 17.0 * rank + 0.37 * static_cast<double>(i));
}

Array array_of(int rank, const Shape& shape, DType dtype = f64) {
  Array a(shape, dtype);
  const HostView view{dtype, shape, a.raw()};
  for (std::int64_t i = 0; i < numel(shape); ++i) view.set(i, element(rank, i));
  return a;
}

Values values_of(const Array& a) {
  Values v;
  for (std::int64_t i = 0; i < a.numel(); ++i) v.push_back(a.at(i));
  return v;
}

CompileOptions of(Communicator& ranks) {
  // The communicator outlives every program of a test.
  return {.threads = 2, .ranks = {std::shared_ptr<void>(), &ranks}};
}

// Each rank computes the tensor x of every rank.
Values all_of(const Communicator& ranks, const Shape& shape) {
  Values all;
  for (int r = 0; r < ranks.size(); ++r)
    for (std::int64_t i = 0; i < numel(shape); ++i) all.push_back(element(r, i));
  return all;
}

TEST(Ranks, EachOpMatchesItsDefinition) {
  for (int n : {2, 3, 4})
    run_ranks(n, [n](Communicator& ranks) {
      const int r = ranks.rank();
      const Shape shape{2 * n, 3};
      const std::int64_t count = numel(shape), piece = count / n;
      Graph g;
      const Tensor x = g.input("x", shape, f64);
      const Values all = all_of(ranks, shape);
      const auto x_of = [&](int s, std::int64_t i) { return all[static_cast<std::size_t>(s * count + i)]; };
      const auto sum = [&](std::int64_t i) {
        const double two = x_of(0, i) + x_of(1, i);
        return n == 2 ? two : n == 3 ? two + x_of(2, i) : two + (x_of(2, i) + x_of(3, i));
      };
      struct Case {
        const char* name;
        Tensor y;
        std::function<double(std::int64_t)> expected;
      };
      const std::vector<Case> cases{
          {"all_reduce", all_reduce({x}, n)[0], sum},
          {"all_reduce_gradient", all_reduce_gradient({x}, n)[0], [&](std::int64_t i) { return x_of(r, i); }},
          {"all_gather", all_gather({x}, n)[0],
           [&](std::int64_t i) { return x_of(static_cast<int>(i / count), i % count); }},
          {"reduce_scatter", reduce_scatter({x}, n)[0], [&](std::int64_t i) { return sum(r * piece + i); }},
          {"all_to_all", all_to_all({x}, n)[0],
           [&](std::int64_t i) { return x_of(static_cast<int>(i / piece), r * piece + i % piece); }},
          {"ppermute", ppermute({x}, n, 1)[0], [&](std::int64_t i) { return x_of((r + n - 1) % n, i); }},
          {"ppermute back", ppermute({x}, n, -1)[0], [&](std::int64_t i) { return x_of((r + 1) % n, i); }},
          {"local_shard", local_shard({x}, n)[0], [&](std::int64_t i) { return x_of(r, r * piece + i); }}};
      for (const Case& c : cases) {
        const Values y = values_of(eval(c.y, {{x, array_of(r, shape)}}, of(ranks)));
        for (std::size_t i = 0; i < y.size(); ++i)
          EXPECT_DOUBLE_EQ(y[i], c.expected(static_cast<std::int64_t>(i))) << c.name << " element " << i;
      }
    });
}

// The functions copy views; kernels read views in place.
TEST(Ranks, KernelsReadViewsOfAnyStrides) {
  run_ranks(2, [](Communicator& ranks) {
    Graph g;
    const Tensor x = g.input("x", {4, 6, 5}, f64), y = g.input("y", {4, 6, 5}, bf16);
    std::vector<Tensor> fetch;
    for (const Op* op :
         {&all_reduce_op, &all_gather_op, &reduce_scatter_op, &all_to_all_op, &ppermute_op, &local_shard_op})
      for (const Tensor& t : {x, y})
        for (const Tensor& view : {permute(t, {1, 2, 0}), slice(t, 2, 1, 5, 2),
                                   expand(slice(t, 1, 2, 3), {4, 6, 5}), slice(transpose(t, 1, 2), 1, 4, 5)})
          for (const Tensor& operand : {view, contiguous(view)})
            fetch.push_back(g.record(*op, std::span(&operand, 1), RankAttrs{.ranks = 2, .shift = 1},
                                     std::source_location::current())[0]);
    const std::vector<Array> got =
        eval(fetch, {{x, array_of(ranks.rank(), x.shape())}, {y, array_of(ranks.rank(), y.shape(), bf16)}},
             of(ranks));
    for (std::size_t i = 0; i < got.size(); i += 2)
      EXPECT_TRUE(got[i].same_bits(got[i + 1])) << "operand " << i / 2 % 8 << " of op " << i / 16;
  });
}

// Tests a different axis and views as operands. Also tests lists of tensors with several dtypes and sizes.
TEST(Ranks, ListsAxesAndViews) {
  run_ranks(2, [](Communicator& ranks) {
    const int r = ranks.rank();
    Graph g;
    const Tensor x = g.input("x", {3, 4}, f64), i = g.input("i", {4}, i64), empty = g.input("e", {0, 2}, f32);
    const Tensor large = g.input("l", {300000}, f64);  // share() sends this tensor in more than one call
    const std::vector<Feed> feeds{{x, array_of(r, {3, 4})},
                                  {i, std::vector<std::int64_t>{10 * r, 10 * r + 1, 10 * r + 2, 10 * r + 3}},
                                  {empty, Array({0, 2}, f32)},
                                  {large, array_of(r, {300000})}};
    const TensorList list = all_to_all({transpose(x, 0, 1), i, empty, large}, 2);
    const Tensor columns = reduce_scatter({x}, 2, 1)[0], joined = all_gather({x}, 2, -1)[0];
    EXPECT_EQ(columns.shape(), (Shape{3, 2}));
    EXPECT_EQ(joined.shape(), (Shape{3, 8}));
    const std::vector<Array> y = eval({list[0], list[1], list[3], columns, joined}, feeds, of(ranks));
    // xᵀ [4, 3] is divided into two pieces of two rows. Rows of xᵀ are columns of x.
    for (int row = 0; row < 4; ++row)
      for (int k = 0; k < 3; ++k)
        EXPECT_EQ(y[0].at(row * 3 + k), element(row / 2, k * 4 + 2 * r + row % 2)) << row << ", " << k;
    for (int k = 0; k < 4; ++k) EXPECT_EQ(y[1].at(k), 10 * (k / 2) + 2 * r + k % 2) << k;
    for (std::int64_t k : {0, 149999, 150000, 299999})
      EXPECT_EQ(y[2].at(k), element(static_cast<int>(k / 150000), r * 150000 + k % 150000)) << k;
    for (int row = 0; row < 3; ++row)
      for (int k = 0; k < 2; ++k) {
        const int at = row * 4 + 2 * r + k;
        EXPECT_DOUBLE_EQ(y[3].at(row * 2 + k), element(0, at) + element(1, at));
      }
    for (int row = 0; row < 3; ++row)
      for (int k = 0; k < 8; ++k) EXPECT_EQ(y[4].at(row * 8 + k), element(k / 4, row * 4 + k % 4));
  });
}

// In f32, the sum over 4 ranks is bitwise identical to (x₀ + x₁) + (x₂ + x₃). The sum over 3 ranks is bitwise
// identical to (x₀ + x₁) + x₂. 16-bit types are rounded once, or not at all.
TEST(Ranks, SumsAreAFixedTree) {
  for (int n : {3, 4})
    run_ranks(n, [n](Communicator& ranks) {
      const Shape shape{1000};
      for (DType dtype : {f32, bf16, f16}) {
        Graph g;
        const Tensor x = g.input("x", shape, dtype);
        const std::vector<Feed> feed{{x, array_of(ranks.rank(), shape, dtype)}};
        const std::vector<Array> y =
            eval({all_reduce({x}, n)[0], all_reduce({x}, n, {.wide = true})[0]}, feed, of(ranks));
        EXPECT_EQ(y[0].dtype(), dtype);
        EXPECT_EQ(y[1].dtype(), f32);
        std::vector<Array> xs;
        for (int r = 0; r < n; ++r) xs.push_back(array_of(r, shape, dtype));
        int in_line = 0;  // number of sums whose rounding depends on the order
        for (std::int64_t i = 0; i < 1000; ++i) {
          float v[4] = {};
          for (int r = 0; r < n; ++r) v[r] = static_cast<float>(xs[static_cast<std::size_t>(r)].at(i));
          const float tree = n == 3 ? (v[0] + v[1]) + v[2] : (v[0] + v[1]) + (v[2] + v[3]);
          in_line += n == 4 && tree != ((v[0] + v[1]) + v[2]) + v[3];
          EXPECT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(y[1].at(i))),
                    std::bit_cast<std::uint32_t>(tree))
              << i;
          Array one(Shape{1}, dtype);
          HostView{dtype, {1}, one.raw()}.set(0, tree);
          EXPECT_EQ(y[0].at(i), one.at(0)) << i;
        }
        EXPECT_TRUE(n == 3 || dtype != f32 || in_line > 50) << in_line;
        if (n == 3) continue;  // 1,000 is not divisible by 3
        const Array piece = eval(reduce_scatter({x}, n)[0], feed, of(ranks));
        for (std::int64_t i = 0; i < 250; ++i) EXPECT_EQ(piece.at(i), y[0].at(ranks.rank() * 250 + i)) << i;
      }
    });
}

// Tests tensors that are shared in several parts, in each dtype. Also tests sums in a different dtype.
TEST(Ranks, SumsOfMoreThanOneShareMatch) {
  run_ranks(2, [](Communicator& ranks) {
    for (const DType dtype : {f64, f32, bf16, f16}) {
      const auto count = static_cast<std::int64_t>(2 * Communicator::most_shared / size_of(dtype)) + 6;
      Graph g;
      const Tensor x = g.input("x", {2 * count}, dtype);
      // Elements are small integers, so each sum is exact in every dtype.
      const auto number = [](int rank, std::int64_t i) { return static_cast<double>(i % 61 + 64 * rank); };
      Array own({2 * count}, dtype);
      for (std::int64_t i = 0; i < 2 * count; ++i)
        HostView{dtype, own.shape(), own.raw()}.set(i, number(ranks.rank(), i));
      const std::vector<Array> y =
          eval({all_reduce({x}, 2)[0], all_reduce({x}, 2, {.wide = true})[0], reduce_scatter({x}, 2)[0]},
               {{x, own}}, of(ranks));
      const auto wrong = [&](const Array& sums, std::int64_t from) {
        std::int64_t n = 0;
        for (std::int64_t i = 0; i < sums.numel(); ++i)
          n += sums.at(i) != number(0, from + i) + number(1, from + i);
        return n;
      };
      EXPECT_EQ(wrong(y[0], 0), 0) << name_of(dtype);
      EXPECT_EQ(wrong(y[1], 0), 0) << name_of(dtype);
      EXPECT_EQ(wrong(y[2], ranks.rank() * count), 0) << name_of(dtype);
    }
  });
}

using gradcheck::RankCase;
using gradcheck::Status;

std::vector<gradcheck::Result> checked(const RankCase& c, Communicator& ranks) {
  return gradcheck::check_ranks(c, std::shared_ptr<Communicator>(std::shared_ptr<void>(), &ranks), {});
}

TEST(Ranks, GradientsMatchDifferences) {
  for (int n : {2, 4})
    run_ranks(n, [](Communicator& ranks) {
      for (const RankCase& c : gradcheck::rank_cases(ranks.size()))
        for (const gradcheck::Result& r : checked(c, ranks)) {
          EXPECT_EQ(r.status, Status::ok)
              << r.text() << ", " << name_of(r.dtype) << ": " << r.note << " " << r.worst.where << ", "
              << r.worst.analytic << ", expected " << r.worst.numeric << ", " << r.ratio << " of its bound";
          EXPECT_GE(r.checked, ranks.size()) << r.text();
        }
    });
}

// If an error occurs on one rank, all ranks must report it.
TEST(Ranks, WrongGradientsAreFound) {
  run_ranks(2, [](Communicator& ranks) {
    const auto one = [&](auto f, bool is_input_replicated, bool is_output_replicated) {
      return RankCase{{"op",
                       "planted",
                       {{{4, 3}}},
                       [f](DType, Device) {
                         return gradcheck::Callable{
                             {}, [f](std::span<const Tensor> x) { return std::vector<Tensor>{f(x[0])}; }};
                       }},
                      is_input_replicated,
                      is_output_replicated};
    };
    const auto gathered = [](const Tensor& x) { return all_gather({x}, 2)[0]; };
    const auto counted_twice = checked(one(gathered, false, true), ranks);
    for (const gradcheck::Result& r : counted_twice)
      EXPECT_EQ(r.status, r.dtype == f64 ? Status::mismatch : Status::ok) << r.text();
    EXPECT_TRUE(counted_twice[0].worst.where.starts_with("rank ")) << counted_twice[0].worst.where;
    EXPECT_NEAR(counted_twice[0].worst.analytic, 2 * counted_twice[0].worst.numeric, 1e-9);

    const auto own = [](const Tensor& x) { return x * 2; };
    const auto differs = checked(one(own, false, true), ranks);
    EXPECT_EQ(differs[0].note, "output 0 is replicated, but rank 1 differs bitwise from rank 0");
    const auto partial = checked(one(own, true, false), ranks);
    EXPECT_EQ(partial[1].note,
              "the gradient of input 0 is replicated, but rank 1 differs bitwise from rank 0");
    EXPECT_EQ(partial[1].status, Status::mismatch);

    // On rank 1, the gradient is wrong in f32 only.
    const auto rank_of = [](const Tensor& x) {
      return local_shard({arange(x.graph(), 0, 2, 1, x.dtype())}, 2)[0];
    };
    const auto in_f32 = [&](const Tensor& x) {
      return x.dtype() == f32 ? x * (1 + 1e-4 * rank_of(x)) : x * 1;
    };
    const auto planted = checked(one(in_f32, false, false), ranks);
    EXPECT_EQ(planted[0].status, Status::ok) << planted[0].worst.where;
    EXPECT_EQ(planted[1].status, Status::mismatch);
    EXPECT_TRUE(planted[1].worst.where.starts_with("rank 1, ")) << planted[1].worst.where;
    EXPECT_EQ(planted[2].status, Status::ok);

    const auto nan_there =
        checked(one([&](const Tensor& x) { return log(x * 0 + (1 - 2 * rank_of(x))); }, false, false), ranks);
    EXPECT_EQ(nan_there[0].status, Status::non_finite);
  });
}

// For each element in turn, only the gradient of this element is wrong. The error is always found, because no
// element or cotangent is 0.
TEST(Ranks, AWrongGradientOfEachElementIsFound) {
  run_ranks(2, [](Communicator& ranks) {
    for (int wrong = 0; wrong < 6; ++wrong) {
      const CustomOp op =
          custom_op("square", {[](const auto& in) { return std::vector<Tensor>{in[0] * in[0]}; },
                               [wrong](const auto& in, const auto&, const auto& z) {
                                 Array factors({2, 3}, in[0].dtype());
                                 for (int i = 0; i < 6; ++i) factors.set(i, i == wrong ? 3 : 2);
                                 return std::vector<Tensor>{z[0] * in[0] * in[0].graph().constant(factors)};
                               }});
      const RankCase c{{"square", "planted", {{{2, 3}}}, [op](DType, Device) {
                          return gradcheck::Callable{{}, [op](std::span<const Tensor> x) {
                                                       return op.all(x, std::source_location::current());
                                                     }};
                        }}};
      const gradcheck::Result r = checked(c, ranks).at(0);
      EXPECT_EQ(r.status, Status::mismatch) << wrong;
      const Shape at{wrong / 3, wrong % 3};
      EXPECT_NE(r.worst.where.find("input 0 " + at.text()), std::string::npos) << r.worst.where;
      EXPECT_NEAR(r.worst.analytic / r.worst.numeric, 1.5, 1e-6);
    }
  });
}

TEST(Ranks, AGroupOfOneRecordsNothing) {
  Graph g;
  const Tensor x = g.input("x", {4, 3}, f64), half = g.input("h", {2}, bf16);
  const std::size_t before = g.nodes().size();
  for (const TensorList& y :
       {all_reduce({x}, 1), all_reduce_gradient({x}, 1), all_gather({x}, 1), reduce_scatter({x}, 1),
        all_to_all({x}, 1), ppermute({x}, 1, 3), local_shard({x}, 1), all_reduce({half}, 1)})
    EXPECT_TRUE(y[0].id() == x.id() || y[0].id() == half.id());
  EXPECT_EQ(g.nodes().size(), before);
  EXPECT_EQ(all_reduce({half}, 1, {.wide = true})[0].dtype(), f32);
}

template <class F>
std::string refusal(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was refused";
}

TEST(Ranks, InvalidCallsAreRefused) {
  Graph g;
  const Tensor x = g.input("x", {4, 3}, f32), i = g.input("i", {4}, i64);
  EXPECT_NE(refusal([&] { reduce_scatter({x}, 3); }).find("4, is not a multiple of 3 ranks"),
            std::string::npos);
  EXPECT_NE(refusal([&] { local_shard({x}, 2, 1); }).find("3, is not a multiple of 2 ranks"),
            std::string::npos);
  for (const int ranks : {1, 2}) {  // calls that several ranks cannot make are refused on one rank, too
    EXPECT_NE(
        refusal([&] { all_reduce({i}, ranks, {.wide = true}); }).find("needs a floating tensor; got i64"),
        std::string::npos);
    EXPECT_NE(refusal([&] { all_gather({x}, ranks, 2); }).find("axis 2 is out of range"), std::string::npos);
    EXPECT_NE(refusal([&] { local_shard({sum(x)}, ranks); }).find("needs at least 1 dimension"),
              std::string::npos);
  }
  EXPECT_NE(refusal([&] { all_reduce({}, 1); }).find("got no tensors"), std::string::npos);
  EXPECT_NE(refusal([&] { all_reduce({x}, 0); }).find("the number of ranks is 0"), std::string::npos);
  EXPECT_NE(refusal([&] { all_reduce({}, 2); }).find("got no tensors"), std::string::npos);
  EXPECT_NE(refusal([&] { all_gather({sum(x)}, 2); }).find("rank"), std::string::npos);
  EXPECT_NE(refusal([&] {
              eval(all_reduce({x}, 2)[0], {{x, Array({4, 3}, f32)}});
            }).find("no communicator"),
            std::string::npos);
}

TEST(Ranks, DifferentProgramsAreNamedBeforeTheyRun) {
  run_ranks(3, [](Communicator& ranks) {
    Graph g;
    const Tensor x = g.input("x", {4}, f32);
    const Tensor common = sum(all_reduce({x}, 3)[0] * 2);
    const Tensor own = ranks.rank() == 2 ? softmax(x, 0) : log_softmax(x, 0);
    const std::string differs = refusal([&] { compile(g, {common, own}, of(ranks)); });
    EXPECT_NE(differs.find("the programs of ranks 0 and 2 differ in step"), std::string::npos) << differs;
    EXPECT_NE(differs.find(ranks.rank() == 2 ? "softmax on rank 2" : "log_softmax on rank"),
              std::string::npos)
        << differs;
    const std::string shorter = refusal([&] {
      compile(g, ranks.rank() == 1 ? std::vector{common} : std::vector{common, max(x * 3)}, of(ranks));
    });
    EXPECT_TRUE(shorter.find("steps: all ranks") != std::string::npos ||
                shorter.find("differ in step") != std::string::npos)
        << shorter;
    const std::string size = refusal([&] { compile(g, {all_reduce({x}, 2)[0]}, of(ranks)); });
    EXPECT_NE(size.find("is for 2 ranks, but compile got a communicator of 3"), std::string::npos) << size;
  });
}

// The waiting step throws the communicator's exception.
TEST(Ranks, ALostRankEndsTheRun) {
  const std::vector<RankResult> results = ask_each_rank(2, [](Communicator& ranks) -> std::string {
    Graph g;
    const Tensor x = g.input("x", {4}, f32);
    Program program = compile(g, {all_reduce({x}, 2)[0]}, of(ranks));
    program.run({{x, Array({4}, f32)}});
    if (ranks.rank() == 1) throw Error("had enough");
    program.run();
    return "went on";
  });
  EXPECT_EQ(results[0].kind, 'l') << results[0].text;
  EXPECT_NE(results[0].text.find("rank 1"), std::string::npos) << results[0].text;
  EXPECT_EQ(results[1].kind, '-');
}

}  // namespace
