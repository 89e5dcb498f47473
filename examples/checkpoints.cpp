// Saves and restores the weights and the optimizer of a small model.
//
//   build/examples/checkpoints DIR
//
// The weights are also restored as bf16 for inference. Exits with status 0 if all restored values are equal
// to the saved values.
#include <tilegrad/tilegrad.h>

#include <cstdio>

using namespace tg;

int main(int argc, char** argv) try {
  if (argc != 2) return std::fprintf(stderr, "usage: checkpoints DIR\n"), 2;
  const std::string run = argv[1];
  const nn::ModelConfig config{.vocabulary = 65, .context = 16, .layers = 2, .width = 32};

  nn::Params params(/*seed=*/1);
  const nn::Model model(params, config);
  const optim::AdamW optimizer(params.all());
  const std::int64_t step = 500, best_step = 500;

  io::CheckpointStore store(run);  // makes the folder and locks it
  store.save(step, best_step,
             {{{"model.safetensors", params.all()}, {"optimizer.safetensors", optimizer.state()}}});

  // The same model gets different initial values, and then the values of the checkpoint.
  nn::Params again(/*seed=*/2);
  const nn::Model same(again, config);
  const optim::AdamW resumed(again.all());
  const io::Checkpoint checkpoint(run);  // the last checkpoint of the run
  checkpoint.restore({{{"model.safetensors", again.all()}, {"optimizer.safetensors", resumed.state()}}});
  std::printf("step %lld: %zu tensors\n", static_cast<long long>(checkpoint.step()), again.all().size());

  nn::Params small(/*seed=*/0, bf16);
  const nn::Model inference(small, config);
  checkpoint.restore({{{"model.safetensors", small.all()}}}, io::Dtypes::convert);

  // Saves the weights in a single file, without a run.
  io::save_parameters(run + "/weights.safetensors", params.all());
  io::load_parameters(run + "/weights.safetensors", again.all());

  bool same_bits = true;
  for (std::size_t i = 0; i < params.all().size(); ++i) {
    const Array saved = params.all()[i].read();
    same_bits = same_bits && again.all()[i].read().same_bits(saved) &&
                small.all()[i].read().same_bits(saved.to(bf16));
  }
  return same_bits ? 0 : 1;
} catch (const Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 2;
}
