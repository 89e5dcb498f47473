// Tests ranks on separate GPUs, which may be emulated. If data are only sent or added, results must be
// bitwise identical to ranks on the CPU. Training must be bitwise identical to training on one GPU. No code
// here may use a GPU before it forks.
#include "tests/support/joined_ranks.h"
#include "tests/support/ranks_faults.h"
#include "tests/support/ranks_training.h"

#include <cmath>

#include "backends/cuda/cuda.h"
#ifdef TG_RACE_RUNS
#include "backends/cuda/collectives/nccl.h"
#include "core/run/ranks.h"
#endif

namespace {

using namespace tg;
using namespace tg::testing;

// The largest number of ranks with a separate GPU for each rank.
int most_ranks() {
#ifdef TG_RACE_RUNS  // emulated: each process has one GPU
  return 4;
#else
  static const int count =
      std::stoi(ask_ranks(1, [](Communicator&) { return std::to_string(cuda::device_count()); })[0]);
  return count;
#endif
}

Device own_gpu([[maybe_unused]] const Communicator& ranks) {
#ifdef TG_RACE_RUNS
  return Device::cuda(0);
#else
  return Device::cuda(ranks.rank());
#endif
}

#define NEEDS_GPUS(n) \
  if (most_ranks() < (n)) GTEST_SKIP() << "needs " << (n) << " GPUs"

std::string bytes_of(const std::vector<Array>& arrays) {
  std::string s;
  for (const Array& a : arrays) append(s, a.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype()));
  return s;
}

// Returns the results of every op on lists of small and large tensors.
std::string exchanged(Communicator& ranks, DType dtype, bool on_gpu) {
  const int n = ranks.size();
  Graph g;
  const Tensor small = g.input("small", {4 * n, 3}, dtype), large = g.input("large", {n, 20011}, dtype),
               column = g.input("column", {5, 2 * n}, dtype);
  std::vector<Tensor> results;
  const auto add = [&](const TensorList& ys) { results.insert(results.end(), ys.begin(), ys.end()); };
  const TensorList xs{small, large};
  add(all_reduce(xs, n));
  add(all_reduce(xs, n, {.wide = true}));
  add(reduce_scatter(xs, n));
  add(reduce_scatter({column}, n, 1, {.wide = true}));
  add(all_gather(xs, n));
  add(all_to_all(xs, n));
  add(ppermute(xs, n, 1));
  add(ppermute(xs, n, -1));
  add(local_shard(xs, n));
  add(all_reduce({small * 2}, n));  // in place
  // Each rank receives several pieces at the same time. Pieces are sent as bytes for any dtype.
  if (dtype == bf16) add(all_reduce({large, large * 3}, n));
  std::vector<Feed> feeds;
  for (const Tensor& x : {small, large, column}) {
    Array a(x.shape(), dtype);
    const HostView view{dtype, x.shape(), a.raw()};
    for (std::int64_t i = 0; i < x.numel(); ++i)
      view.set(i, std::sin(1.0 + 17.0 * ranks.rank() + 0.37 * static_cast<double>(i)));
    feeds.emplace_back(x, a);
  }
  return bytes_of(eval(results, feeds,
                       {.device = on_gpu ? own_gpu(ranks) : Device::cpu(),
                        .threads = 1,
                        .ranks = {std::shared_ptr<void>(), &ranks}}));
}

TEST(CudaRanks, OpsMatchTheCpuBitwise) {
  for (int n : {2, 3, 4}) {
    if (n > most_ranks()) continue;
    for (DType dtype : {f32, bf16, f16, f64}) {
      const auto cpu = ask_ranks(n, [&](Communicator& ranks) { return exchanged(ranks, dtype, false); });
      const auto gpu = ask_ranks(
          n, [&](Communicator& ranks) { return exchanged(ranks, dtype, true); }, 120);
      for (int r = 0; r < n; ++r) {
        EXPECT_GT(cpu[static_cast<std::size_t>(r)].size(), 1000u);
        EXPECT_TRUE(gpu[static_cast<std::size_t>(r)] == cpu[static_cast<std::size_t>(r)])
            << name_of(dtype) << ", rank " << r << " of " << n;
      }
    }
  }
  NEEDS_GPUS(2);
}

// In a group of one rank, the ops copy or convert.
TEST(CudaRanks, AGroupOfOne) {
  NEEDS_GPUS(1);
  ask_ranks(1, [](Communicator& ranks) {
    Graph g;
    const Tensor x = g.input("x", {6, 4}, f32);
    std::vector<Tensor> results;
    for (const char* name :
         {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ppermute", "local_shard"}) {
      const Op* op = find_op(name);
      results.push_back(op->samples()[0].call(std::vector<Tensor>{x})[0]);
    }
    Array a({6, 4}, f32);
    for (int i = 0; i < 24; ++i) HostView{f32, {6, 4}, a.raw()}.set(i, i);
    for (const Array& y : eval(results, {{x, a}}, {.device = own_gpu(ranks)})) EXPECT_TRUE(y.same_bits(a));
    return std::string();
  });
}

void expect_bits_of_one(const How& how) {
  NEEDS_GPUS(2);
  const auto run = [&](Communicator& ranks) { return trained(ranks, how, own_gpu(ranks)); };
  const std::string one = ask_ranks(1, run, 300)[0];
  ASSERT_GT(one.size(), 1000u);
  for (int n : {2, 4}) {
    if (n > most_ranks() || how.accumulate % n != 0) continue;
    const std::vector<std::string> all = ask_ranks(n, run, 300);
    for (std::size_t r = 0; r < all.size(); ++r) EXPECT_TRUE(all[r] == one) << "rank " << r << " of " << n;
  }
}

TEST(CudaRanks, TrainingMatchesOneGpuBitwise) {
  expect_bits_of_one({"f32", nn::Precision::full, "adamw", 0.1, 0, micro_batches, 4});
}
TEST(CudaRanks, TrainingInBf16MatchesOneGpuBitwise) {
  expect_bits_of_one({"bf16", nn::Precision::bf16, "adamw", 0, 0, micro_batches, 4});
}

// Each rank has one batch, so some gradients are summed during the backward pass.
TEST(CudaRanks, EarlySumsMatchOneGpuBitwise) {
  expect_bits_of_one({"early", nn::Precision::bf16, "adamw", 0, 0, 2, 4, true, true});
}

// Computes o, ξ, z_q, z_k and z_v of the rank's own tokens, in f32, by ring attention. The head size is
// suitable for tensor cores.
std::vector<float> ring(Communicator& ranks, DType dtype, const AttentionOptions& options, bool on_gpu) {
  const int n = ranks.size();
  const std::int64_t own = 32, d = 64;
  Graph g;
  std::vector<Feed> feeds;
  const auto input = [&](const char* name, std::int64_t heads) {
    const Tensor x = g.input(name, {1, own, heads, d}, dtype);
    Array a(x.shape(), dtype);
    const HostView view{dtype, x.shape(), a.raw()};
    for (std::int64_t i = 0; i < x.numel(); ++i)
      view.set(i, std::sin(1.0 + 17.0 * ranks.rank() + 3 * static_cast<double>(heads) +
                           0.37 * static_cast<double>(i) + 0.01 * static_cast<double>(i % 13)));
    feeds.emplace_back(x, a);
    return transpose(x, 1, 2);
  };
  const Tensor q = input("q", 4), k = input("k", 2), v = input("v", 2), w = input("w", 4);
  const auto [o, lse] = ring_attention(q, k, v, n, options);
  const std::vector<Tensor> z = gradients(sum(cast(o * w, f32)) + sum(lse), {q, k, v});
  std::vector<Tensor> results;
  for (const Tensor& x : {o, lse, z[0], z[1], z[2]}) results.push_back(contiguous(cast(x, f32)));
  std::vector<float> all;
  for (const Array& a : eval(results, feeds,
                             {.device = on_gpu ? own_gpu(ranks) : Device::cpu(),
                             .threads = 1,
                             .ranks = {std::shared_ptr<void>(), &ranks}}))
    for (std::int64_t i = 0; i < a.numel(); ++i) all.push_back(static_cast<float>(a.at(i)));
  return all;
}

// Both devices round parts of results in different orders. The largest allowed difference is a few roundings
// of the largest number.
TEST(CudaRanks, RingAttentionMatchesTheCpu) {
  NEEDS_GPUS(2);
  const AttentionOptions all[] = {{.causal = true}, {}, {.causal = true, .window_left = 20}};
  for (int n : {2, 4}) {
    if (n > most_ranks()) continue;
    for (DType dtype : {f32, bf16})
      for (const AttentionOptions& options : all)
        ask_ranks(
            n,
            [&](Communicator& ranks) {
              const std::vector<float> gpu = ring(ranks, dtype, options, true),
                                       cpu = ring(ranks, dtype, options, false);
              EXPECT_GT(gpu.size(), 1000u);
              float most = 0, largest = 0;
              for (std::size_t i = 0; i < gpu.size(); ++i) {
                const float apart = std::abs(gpu[i] - cpu[i]);
                most = std::isfinite(apart) ? std::max(most, apart) : HUGE_VALF;
                largest = std::max(largest, std::abs(cpu[i]));
              }
              EXPECT_LT(most, (dtype == f32 ? 1e-5f : 2e-2f) * largest)
                  << name_of(dtype) << ", window " << options.window_left << ", rank " << ranks.rank()
                  << " of " << n;
              return std::string();
            },
            300);
  }
}

// One rank fails, or is killed, while the other ranks wait for it on their GPUs. The other ranks must end
// immediately and report the lost rank. As they end, they destroy their programs and the exchange between
// GPUs.
void expect_waits_end(const std::string& line, const std::function<void(int run)>& on_last_rank) {
  for (int n : {2, 4}) {
    if (n > most_ranks()) continue;
    const std::vector<RankResult> results = ask(n, [&](int rank) -> std::string {
      // If a rank still runs this long after the loss, it is killed without a message, and the test fails.
      const auto group = parallel::join(world_of(rank, n), {.end_after = std::chrono::seconds(20)});
      try {
        Graph g;
        const Tensor x = g.input("x", {1000}, f32), y = all_reduce({tanh(x)}, n)[0],
                     z = all_gather({x}, n)[0];
        const std::shared_ptr<Communicator> ranks(group, &group->communicator());
        const CompileOptions options{.device = own_gpu(*ranks), .threads = 1, .ranks = ranks};
        Program first = compile(g, {y}, options), second = compile(g, {z}, options);
        for (int run = 0;; ++run) {
          if (rank == n - 1) on_last_rank(run);
          first.run({{x, Array({1000}, f32)}});
          second.run({{x, Array({1000}, f32)}});
          Pending now = first.fetch_later({y});
          now.wait();
        }
      } catch (const std::exception& e) {
        group->fail(e.what());
        throw;
      }
    });
    for (int r = 0; r < n - 1; ++r) {
      const RankResult& result = results[static_cast<std::size_t>(r)];
      EXPECT_EQ(result.kind, 'l') << "rank " << r << " of " << n << ": " << result.text;
      EXPECT_EQ(result.text, "[ranks] rank " + std::to_string(n - 1) + line) << "rank " << r << " of " << n;
    }
  }
  NEEDS_GPUS(2);
}
TEST(CudaRanks, AWaitForARankThatFailsEnds) {
  expect_waits_end(" failed: had enough", [](int run) {
    if (run == 3) throw Error("had enough");
  });
}
TEST(CudaRanks, AWaitForARankThatIsKilledEnds) {
  expect_waits_end(" is lost: its process exited without reporting an error, or was killed", [](int run) {
    if (run == 3) ::raise(SIGKILL);
  });
}

// A step has one or several batches on each rank. With one batch, a single program also updates. With several
// batches, a separate program updates.
TEST(CudaRanks, AFaultOfOneRankEndsAllRanksAndIsNotSaved) {
  NEEDS_GPUS(2);
  for (InjectedFault::Kind kind : {InjectedFault::index, InjectedFault::host_function})
    for (std::int64_t accumulate : {2, 4})
      expect_faults_end_all(2, {.kind = kind, .accumulate = accumulate}, own_gpu, 300);
  expect_faults_end_all(2, {.vocabulary = 1100}, own_gpu, 300);
  if (most_ranks() >= 4) expect_faults_end_all(4, {.vocabulary = 1100}, own_gpu, 300);
}

#ifdef TG_RACE_RUNS
// NCCL detects the lost rank immediately. The watchdog detects the loss 3 s later, as if a host did not
// answer.
TEST(CudaRanks, ARankThatNcclReportsFirstIsLost) {
  const std::vector<RankResult> results = ask(2, [](int rank) -> std::string {
    const auto group = parallel::join(world_of(rank, 2));
    const std::shared_ptr<Communicator> ranks(group, &group->communicator());
    if (rank == 1) ::alarm(3);
    if (rank == 0) ::setenv("TG_EMULATED_NCCL_LOST", "1", 1);
    cuda::NcclGroup::of(ranks, 0);
    return "no loss";
  });
  EXPECT_EQ(results[0].kind, 'l');
  EXPECT_EQ(results[0].text,
            "[ranks] rank 1 is lost: its process exited without reporting an error, or was killed");
}

// The other ranks wait in NCCL for a rank. This rank has agreed to join but never joins.
TEST(CudaRanks, ARankThatHangsBeforeItJoinsIsNamed) {
  const std::vector<RankResult> results = ask(2, [](int rank) -> std::string {
    const auto group = parallel::join(
        world_of(rank, 2), {.step_timeout = milliseconds(1000), .end_after = std::chrono::seconds(10)});
    const std::shared_ptr<Communicator> ranks(group, &group->communicator());
    group->progress(0);
    if (rank == 0) return tg::testing::error_of([&] { cuda::NcclGroup::of(ranks, 0)->begin(); });
    gather_one(*ranks, std::array<char, 112>{});  // the rank reports its GPU
    gather_one(*ranks, cuda::NcclId{});
    return tg::testing::error_of([&] {
      for (int i = 0; i < 50; ++i) nap(milliseconds(100)), ranks->check_lost();
    });
  });
  for (const RankResult& r : results)
    EXPECT_EQ(r.text.find("[ranks] rank 1 made no progress for "), 0u) << r.text;
}

TEST(CudaRanks, NoExchangeBeginsAfterALoss) {
  const std::vector<RankResult> results = ask(2, [](int rank) {
    const auto group = parallel::join(world_of(rank, 2));
    const std::shared_ptr<Communicator> ranks(group, &group->communicator());
    const auto nccl = cuda::NcclGroup::of(ranks, 0);
    if (rank == 1) group->fail("enough");
    nap(milliseconds(500));  // the watchdog ends the waiting call in this time
    return tg::testing::error_of([&] { nccl->begin(); });
  });
  for (const RankResult& r : results) EXPECT_EQ(r.text, "[ranks] rank 1 failed: enough");
}
#else  // each process has a different emulated GPU
TEST(CudaRanks, TwoRanksOnOneGpuAreRefused) {
  NEEDS_GPUS(1);
  const std::vector<RankResult> results = ask_each_rank(2, [](Communicator& ranks) {
    Graph g;
    const Tensor x = g.input("x", {4}, f32);
    eval(all_reduce({x}, 2)[0], {{x, Array({4}, f32)}},
         {.device = Device::cuda(0), .ranks = {std::shared_ptr<void>(), &ranks}});
    return std::string();
  });
  EXPECT_NE(results[0].text.find("ranks 0 and 1 have the same GPU"), std::string::npos) << results[0].text;
}
#endif

}  // namespace
