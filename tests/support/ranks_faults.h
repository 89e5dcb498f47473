// Trains on several ranks, on any backend. A step of one rank fails.
#pragma once

#include <tilegrad/tilegrad.h>
#include "tests/support/files.h"
#include "tests/support/joined_ranks.h"

namespace tg::testing {

// The kind of failure, the rank, and the step, counted from 1.
struct InjectedFault {
  enum Kind { index, host_function } kind = index;
  int rank = 0;
  std::int64_t step = 0;  // 0: no failure
  std::int64_t accumulate = 4;
  std::int64_t vocabulary = 13;  // with 1,100, the update is sharded
};

inline constexpr std::int64_t steps_until_faults = 5, saved_every = 2;
// The last step that was saved before the fault, or 0.
inline std::int64_t saved_before(const InjectedFault& f) {
  return (f.step - 1) / saved_every * saved_every;
}

// Tokens are below 12, except for one token in the failing step of the rank. If this token is in the first
// batch, the embedding has no row for it. If it is in the last batch, it is 12, and a host function throws.
class FaultyBatches : public train::Batches {
 public:
  FaultyBatches(const InjectedFault& fault, int ranks) : fault_(fault), ranks_(ranks) {}
  void training(std::uint64_t, std::int64_t step, Tokens x, Tokens y) const override {
    fill(step, x, y);
    if (step + 1 != fault_.step) return;
    const auto own = x.size() / static_cast<std::size_t>(ranks_);
    const auto first = own * static_cast<std::size_t>(fault_.rank);
    if (fault_.kind == InjectedFault::index)
      x[first + 3] = static_cast<std::int32_t>(fault_.vocabulary);
    else
      x[first + own - 3] = 12;
  }
  std::int64_t validation_count() const override { return 3; }
  void validation(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override { fill(100 + k, x, y); }

 private:
  static void fill(std::int64_t n, Tokens x, Tokens y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      x[i] = static_cast<std::int32_t>((at * at + at / 5 + 7 * n) % 12);
      y[i] = static_cast<std::int32_t>((at * 5 + 3 * n) % 12);
    }
  }
  const InjectedFault fault_;
  const int ranks_;
};

// Returns x, but throws if one of the tokens is 12.
inline const CustomOp& throws_at_12() {
  static const CustomOp op =
      register_host_op({.name = "throws_at_12",
                        .forward =
                            [](std::span<const HostView> in, std::span<const HostView> out) {
                              for (std::int64_t i = 0; i < in[1].numel(); ++i)
                                if (in[1].at(i) == 12) throw std::runtime_error("token 12 came");
                              for (std::int64_t i = 0; i < in[0].numel(); ++i) out[0].set(i, in[0].at(i));
                            },
                        .backward =
                            [](const HostGradient& g) {
                              for (std::int64_t i = 0; i < g.z[0].numel(); ++i)
                                g.z_in[0].set(i, g.z[0].at(i));
                            }});
  return op;
}

// Trains on each rank. Rank 0 saves every second step and the last step in `directory`.
inline void train_until_fault(const std::shared_ptr<Communicator>& ranks, const InjectedFault& fault,
                              const std::string& directory, Device device = Device::cpu(),
                              std::int64_t steps = steps_until_faults) {
  nn::Params params(1, f32, device);
  const nn::Model model(params,
                        {.vocabulary = fault.vocabulary, .context = 8, .layers = 1, .heads = 2, .width = 16});
  nn::LanguageModel checked = model;
  checked.features = [model](TensorArg tokens, const nn::CallArgs& call) {
    return throws_at_12()(model.features(tokens, call), tokens);
  };
  const FaultyBatches batches(fault, ranks->size());
  train::ProgramOptions program{.batch = 2, .threads = 1, .accumulate = fault.accumulate};
  if (ranks->size() > 1) program.ranks = ranks;
  const optim::AdamW optimizer(params.all(), {.ranks = program.ranks});
  std::optional<io::CheckpointStore> store;
  if (ranks->rank() == 0) store.emplace(directory);
  const optim::Schedule constant{.peak = 0.01, .floor = 0.01, .warmup = 0, .steps = steps};
  train::Trainer trainer(checked, optimizer, batches,
                         {.steps = steps,
                          .schedule = constant,
                          .program = program,
                          .validate_every = 100,
                          .validation_batches = 2,
                          .save_every = saved_every},
                         {.files = [&](const auto&) -> std::vector<io::CheckpointFile> {
                           return {{"model.safetensors", params.all(), {}}};
                         }},
                         store ? &*store : nullptr);
  trainer.run();
}

inline bool is_same(const std::string& a, const std::string& b) {
  const auto content = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  return content(a) == content(b) && !content(a).empty();
}

// Tests a fault on each rank in each of these steps. The fault must end all ranks and be reported. The saved
// files must equal the files of a run without faults at the saved step.
inline void expect_faults_end_all(int ranks, const InjectedFault& of_kind,
                                  const std::function<Device(const Communicator&)>& device, int seconds) {
  const TemporaryDirectory directory;
  for (const std::int64_t step : {std::int64_t{1}, std::int64_t{4}, steps_until_faults})
    for (const int rank : {0, ranks - 1}) {
      InjectedFault fault = of_kind;
      fault.rank = rank, fault.step = step;
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ", step " +
                   std::to_string(step));
      const std::string faulty = directory / ("faulty" + std::to_string(rank) + std::to_string(step));
      const std::vector<RankResult> ended = ask(
          ranks,
          [&](int own) -> std::string {
            const auto group = parallel::join(world_of(own, ranks), {.end_after = std::chrono::seconds(20)});
            const std::shared_ptr<Communicator> all(group, &group->communicator());
            try {
              train_until_fault(all, fault, faulty, device(*all));
            } catch (const std::exception& e) {
              group->fail(e.what());
              throw;
            }
            return "continued";
          },
          seconds);
      const std::string reason = fault.kind == InjectedFault::index
                                     ? "index " + std::to_string(fault.vocabulary) + " at position"
                                     : "token 12 came",
                        told = "[ranks] rank " + std::to_string(rank) + " failed: ";
      for (int r = 0; r < ranks; ++r) {
        const auto& [how, text] = ended[static_cast<std::size_t>(r)];
        EXPECT_EQ(how, r == rank ? '-' : 'l') << "rank " << r << ": " << text;
        EXPECT_TRUE(r == rank || text.starts_with(told)) << "rank " << r << ": " << text;
        EXPECT_NE(text.find(reason), std::string::npos) << "rank " << r << ": " << text;
      }
      const std::int64_t saved = saved_before(fault);
      if (saved == 0) {
        EXPECT_FALSE(std::filesystem::exists(faulty + "/last"));
        continue;
      }
      const std::string clean = directory / ("clean" + std::to_string(saved));
      if (!std::filesystem::exists(clean))
        ask_ranks(
            1,
            [&](Communicator& r) {
              train_until_fault({std::shared_ptr<void>(), &r},
                                {.accumulate = fault.accumulate, .vocabulary = fault.vocabulary}, clean,
                                device(r), saved);
              return std::string();
            },
            seconds);
      for (const char* file : {"/last/model.safetensors", "/last/optimizer.safetensors"})
        EXPECT_TRUE(is_same(faulty + file, clean + file)) << file;
    }
}

}  // namespace tg::testing
