// Fine-tunes the model of a Hugging Face folder with LoRA until it repeats some tokens, and saves the adapter
// as a PEFT folder, which must not exist.
//   lora FOLDER ADAPTER TOKEN...
#include <tilegrad/io/interop/peft.h>
#include <tilegrad/tilegrad.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: lora FOLDER ADAPTER TOKEN...\n");
    return 2;
  }
  try {
    std::vector<std::int32_t> cycle;
    for (int i = 3; i < argc; ++i) cycle.push_back(std::atoi(argv[i]));

    auto model = tg::nn::from_pretrained(argv[1], {}, {.context = 16});
    tg::nn::add_lora(model, {.rank = 8, .alpha = 16});
    const tg::optim::AdamW optimizer(model.model.parameters());  // of the adapters: the model is frozen
    const std::int64_t batch = 4, context = model.model.context();
    tg::train::TrainingProgram step(model, optimizer, {.batch = batch});

    // Each row begins at another place of the cycle; each token is to be followed by the next.
    std::vector<std::int32_t> tokens, targets;
    for (std::int64_t i = 0; i < batch * context; ++i) {
      const auto at = static_cast<std::size_t>(i / context + i % context);
      tokens.push_back(cycle[at % cycle.size()]);
      targets.push_back(cycle[(at + 1) % cycle.size()]);
    }
    std::printf("%s, %zu adapters\n", model.info.text().c_str(), model.model.lora()->modules.size());
    for (int n = 0; n <= 100; ++n) {
      const float loss = step.run(tokens, targets, 0.01).loss;
      if (n % 50 == 0) std::printf("step %3d: loss %.4f\n", n, static_cast<double>(loss));
    }
    tg::nn::save_adapter(argv[2], model);

    // As anyone who has the folder and the adapter.
    auto tuned = tg::nn::from_pretrained(argv[1]);
    tg::nn::load_adapter(tuned, argv[2]);
    tg::nn::merge_lora(tuned.model);
    std::vector<std::int32_t> text = {cycle[0]};
    tg::nn::Generator(tuned).extend(text, 12, {.temperature = 0}, 1);
    bool repeats = true;
    for (std::size_t i = 0; i < text.size(); ++i) {
      std::printf("%d ", text[i]);
      repeats = repeats && text[i] == cycle[i % cycle.size()];
    }
    std::printf("\n");
    return repeats ? 0 : 1;
  } catch (const tg::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
