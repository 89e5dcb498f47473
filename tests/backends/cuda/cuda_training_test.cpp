// Compares complete training steps on a GPU with the CPU. Skipped if there is no GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/tilegrad.h>
#include "backends/cuda/cuda.h"
#include "core/compile/budget.h"
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr int steps = 20;
constexpr double learning_rate = 2e-3;

class CudaTraining : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  }
};

SmallGptOptions on_gpu(SmallGptOptions o = {}) {
  o.device = Device::cuda();
  return o;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], bound) << "step " << i;
}

TEST_F(CudaTraining, InitialWeightsMatchTheCpuBitwise) {
  EXPECT_TRUE(same_bits(SmallGpt().weights_and_moments(), SmallGpt(on_gpu()).weights_and_moments()));
}

TEST_F(CudaTraining, LossesMatchTheCpuInF32) {
  SmallGpt host, gpu(on_gpu());
  expect_near(gpu.losses(steps, learning_rate), host.losses(steps, learning_rate), 1e-4);
}

// A different dropout mask changes the loss. This change is measured with another seed.
TEST_F(CudaTraining, DropoutMatchesTheCpuInEveryStep) {
  SmallGpt host({.dropout = 0.3}), other({.dropout = 0.3, .seed = 6}), gpu(on_gpu({.dropout = 0.3}));
  const auto here = host.losses(steps, learning_rate), elsewhere = other.losses(steps, learning_rate);
  double apart = 0;
  for (int i = 0; i < steps; ++i) apart = std::max(apart, std::abs(here[i] - elsewhere[i]));
  EXPECT_GT(apart, 1e-2);
  expect_near(gpu.losses(steps, learning_rate), here, 1e-4);
}

TEST_F(CudaTraining, ComputesInTF32And16BitTypesOnF32Weights) {
  SmallGpt host;
  const auto exact = host.losses(steps, learning_rate);
  for (const nn::Precision p : {nn::Precision::tf32, nn::Precision::bf16, nn::Precision::f16}) {
    SmallGpt gpu(on_gpu({.precision = p, .loss_scale = loss_scale_for(p)}));
    expect_near(gpu.losses(steps, learning_rate), exact, p == nn::Precision::bf16 ? 3e-3 : 5e-4);
    for (const Parameter& w : gpu.params.all()) EXPECT_EQ(w.dtype(), f32);
    const auto last = gpu.step(learning_rate);
    EXPECT_TRUE(std::isfinite(last.grad_norm));
    EXPECT_EQ(last.skipped + last.overflowed, 0);
  }
}

TEST_F(CudaTraining, AnOverflowInF16HalvesTheScaleAndSkipsTheStep) {
  SmallGpt gpu(on_gpu({.precision = nn::Precision::f16, .loss_scale = optim::LossScale{}}));
  gpu.step();
  gpu.state("loss_scale").write(Array::of<float>({}, {0x1p40f}));
  const auto before = gpu.weights_and_moments();
  auto result = gpu.step();
  EXPECT_EQ(result.loss_scale, 0x1p39f);
  EXPECT_EQ(result.overflowed, 1);
  EXPECT_TRUE(same_bits(gpu.weights_and_moments(), before));
  for (int i = 0; i < 30; ++i) result = gpu.step();
  EXPECT_TRUE(std::isfinite(result.grad_norm));
  EXPECT_EQ(result.loss_scale, std::ldexp(1.0f, 40 - static_cast<int>(result.overflowed)));
  EXPECT_FALSE(same_bits(gpu.weights_and_moments(), before));
}

// Recomputed values must be bitwise identical to the original values. Cheap values are recomputed. With the
// smallest budgets, GEMMs and attention are also recomputed.
TEST_F(CudaTraining, MemoryBudgetKeepsResultsBitwise) {
  for (const nn::Precision precision : {nn::Precision::bf16, nn::Precision::full}) {
    const auto run = [&](std::size_t budget) {
      nn::Params params(1, f32, Device::cuda());
      const nn::ModelConfig config{.vocabulary = 13, .context = 40, .layers = 4, .heads = 2, .width = 32};
      const nn::Model model(params, config);
      const optim::AdamW optimizer(params.all());
      train::TrainingProgram training(
          model, optimizer, {.batch = 2, .precision = precision, .loss_chunks = 1, .memory_budget = budget});
      std::vector<std::int32_t> x, y;
      for (std::int32_t i = 0; i < 80; ++i) x.push_back(i * i % 13), y.push_back((i * i + 3) % 13);
      std::vector<Array> left;
      for (int i = 0; i < 2; ++i) training.run(x, y, 1e-2);
      for (const Parameter& p : params.all()) left.push_back(p.read());
      return std::pair(left, training.memory());
    };
    const auto [free, memory] = run(0);
    std::size_t least = 0;
    try {
      run(1);
    } catch (const BudgetTooSmall& e) {
      least = e.least;
    }
    // A plan without a run includes the workspace of every algorithm. For a small model, this may exceed the
    // available memory.
    const double room = std::max(0., static_cast<double>(memory.peak()) - static_cast<double>(least));
    bool has_products = false;
    for (const double above : {0., 0.1, 0.3, 0.6, 0.9}) {
      const auto [limited, again] = run(least + static_cast<std::size_t>(above * room));
      SCOPED_TRACE(::testing::Message()
                   << "precision " << static_cast<int>(precision) << ", above " << above << ": "
                   << again.recomputed.steps << " steps again, " << again.recomputed.products << " products");
      has_products = has_products || again.recomputed.products > 0;
      for (std::size_t i = 0; i < free.size(); ++i) {
        double apart = 0;
        for (std::int64_t k = 0; k < free[i].numel(); ++k)
          apart = std::max(apart, std::abs(limited[i].at(k) - free[i].at(k)));
        EXPECT_TRUE(limited[i].same_bits(free[i])) << "parameter " << i << ", " << apart << " apart";
      }
    }
    EXPECT_TRUE(has_products);
  }
}

// The loss is computed in chunks because of an option or a budget. GEMMs have 64 rows.
TEST_F(CudaTraining, AnyChunksOfTheLossMatchBitwise) {
  const nn::ModelConfig config{.vocabulary = 1096, .context = 40, .layers = 1, .heads = 2, .width = 32};
  constexpr std::int64_t batch = 7, rows = batch * 40;
  std::vector<std::int32_t> x, y;
  for (std::int32_t i = 0; i < rows; ++i) x.push_back(i * i % 1096), y.push_back((i * i + 3) % 1096);
#ifdef TG_RACE_RUNS  // each emulated run takes seconds
  const std::vector<nn::Precision> precisions{nn::Precision::bf16, nn::Precision::full};
#else
  const std::vector<nn::Precision> precisions{nn::Precision::bf16, nn::Precision::f16, nn::Precision::full,
                                              nn::Precision::tf32};
#endif
  for (const nn::Precision precision : precisions) {
    struct Left {
      std::vector<Array> parameters;
      std::int64_t chunks;
      MemoryReport memory;
    };
    train::ProgramOptions o{.batch = batch, .precision = precision};
    const auto run = [&] {
      nn::Params params(1, f32, Device::cuda());
      const nn::Model model(params, config);
      nn::LanguageModel in_units = model;
      in_units.loss = [model](TensorArg features, TensorArg targets, nn::LossOptions options) {
        options.unit_rows = 64;
        return model.loss(features, targets, options);
      };
      const optim::AdamW optimizer(params.all());
      train::TrainingProgram training(in_units, optimizer, o);
      Left left{{}, 0, training.memory()};
      for (const Step& s : training.program().steps()) left.chunks += s.op->name == "linear_cross_entropy";
      if (o.plan_only) return left;
      for (int i = 0; i < 3; ++i) training.run(x, y, 1e-2);
      for (const Parameter& p : params.all()) left.parameters.push_back(p.read());
      return left;
    };
    const Left whole = run();
    EXPECT_EQ(whole.chunks, 1);
    const auto expect_same = [&](std::int64_t chunks) {
      const Left left = run();
      EXPECT_EQ(left.chunks, chunks);
      for (std::size_t i = 0; i < whole.parameters.size(); ++i)
        EXPECT_TRUE(left.parameters[i].same_bits(whole.parameters[i]))
            << "precision " << static_cast<int>(precision) << ", " << left.chunks << " chunks, parameter "
            << i;
    };
    for (const auto& [asked, chunks] : {std::pair{2, 2}, {3, 4}}) {  // 280 rows: chunks of 128 and 64 rows
      o.loss_chunks = asked;
      expect_same(chunks);
    }
    if (!nn::low_precision_dtype(precision)) continue;  // the loss of such a small step needs little memory
    // Starts with the planned memory and lowers the budget until the loss needs chunks.
    o.loss_chunks = 0, o.plan_only = true;
    Left planned = run();
    const std::size_t peak = planned.memory.peak(), step = rows * 1096 * 2 / 16;
    try {
      for (std::size_t less = step; planned.chunks == 1; less += step)
        o.memory_budget = peak - less, planned = run();
    } catch (const OutOfMemory&) {
    }
    ASSERT_GT(planned.chunks, 1);
    o.plan_only = false;
    expect_same(planned.chunks);
  }
}

TEST_F(CudaTraining, ContinuesOnTheCpuFromWhereItStopped) {
  SmallGpt gpu(on_gpu()), host;
  gpu.losses(3, learning_rate);
  const auto copy = [](const std::vector<Parameter>& from, const std::vector<Parameter>& to) {
    for (std::size_t i = 0; i < from.size(); ++i) Parameter(to[i]).write(from[i].read());
  };
  copy(gpu.params.all(), host.params.all());
  copy(gpu.optimizer.state(), host.optimizer.state());
  EXPECT_TRUE(same_bits(gpu.weights_and_moments(), host.weights_and_moments()));
  expect_near(gpu.losses(5, learning_rate), host.losses(5, learning_rate), 1e-4);
}

// SGD and Muon consist of ordinary ops. A step with two batches has two programs. Blocks may be recomputed.
TEST_F(CudaTraining, EveryOptimizerMatchesTheCpu) {
  const auto losses = [](Device device, const auto& make, const train::ProgramOptions& options) {
    nn::Params params(1, f32, device);
    const nn::Model model(params, small_gpt());
    const auto optimizer = make(params.all());
    train::TrainingProgram training(model, optimizer, options);
    std::vector<double> all;
    for (int i = 0; i < 5; ++i) {
      const SmallBatch b(i);
      all.push_back(training.run(b.x, b.y, 1e-2).loss);
    }
    return all;
  };
  const auto check = [&](const auto& make, const train::ProgramOptions& options) {
    expect_near(losses(Device::cuda(), make, options), losses(Device::cpu(), make, options), 2e-4);
  };
  const train::ProgramOptions whole{.batch = small_batch, .threads = 1};
  check([](const auto& p) { return optim::Sgd(p, {.nesterov = true}); }, whole);
  check([](const auto& p) { return optim::Muon(p); }, whole);
  check([](const auto& p) { return optim::AdamW(p); },
        {.batch = small_batch / 2, .threads = 1, .accumulate = 2});
  check([](const auto& p) { return optim::AdamW(p); },
        {.batch = small_batch, .threads = 1, .recompute = true});
}

TEST_F(CudaTraining, CheckpointsMatchTheCpu) {
  const std::string dir = ::testing::TempDir() + "cuda_checkpoint_" + std::to_string(::getpid());
  const auto files = [](const SmallGpt& g) {
    return std::vector<io::CheckpointFile>{{"model.safetensors", g.params.all()},
                                           {"optimizer.safetensors", g.optimizer.state()}};
  };
  SmallGpt gpu(on_gpu()), host;
  gpu.losses(3, learning_rate);
  std::filesystem::create_directory(dir);
  io::write_checkpoint(dir + "/gpu", 3, 0, files(gpu));
  io::Checkpoint(dir + "/gpu").restore(files(host));
  EXPECT_TRUE(same_bits(gpu.weights_and_moments(), host.weights_and_moments()));
  io::write_checkpoint(dir + "/cpu", 3, 0, files(host));
  for (const char* file : {"/model.safetensors", "/optimizer.safetensors", "/manifest.json"})
    EXPECT_EQ(io::read_file(dir + "/cpu" + file, "test"), io::read_file(dir + "/gpu" + file, "test")) << file;
  std::filesystem::remove_all(dir);
}

}  // namespace
