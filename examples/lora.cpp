// Fine-tunes a model from a Hugging Face folder with LoRA until it has memorized some tokens, generates them,
// and saves the adapter for PEFT.
//    lora FOLDER ADAPTER TOKEN...
#include <tilegrad/io/models/peft.h>
#include <tilegrad/tilegrad.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: lora FOLDER ADAPTER TOKEN TOKEN...\n");
    return 2;
  }
  try {
    std::vector<std::int32_t> tokens;
    for (int i = 3; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
    const std::vector<std::int32_t> read(tokens.begin(), tokens.end() - 1),
        next(tokens.begin() + 1, tokens.end());

    // The weights are frozen, in bf16. The adapters are trained in f32.
    const auto length = static_cast<std::int64_t>(read.size());
    tg::nn::Pretrained model =
        tg::nn::from_pretrained(argv[1], tg::Device::cpu(), {.dtype = tg::bf16, .context = length + 1});
    tg::nn::add_lora(model, {.rank = 4, .alpha = 8});
    const tg::optim::AdamW optimizer(model.model.parameters());
    std::printf("%s: %lld parameters, of which LoRA trains %zu tensors\n", argv[1],
                static_cast<long long>(model.info.config.parameters()), optimizer.parameters().size());

    tg::nn::LanguageModel learner = model;
    learner.context = length;  // rows of a batch are as long as the sequence
    tg::train::TrainingProgram step(learner, optimizer, {.batch = 1, .precision = tg::nn::Precision::bf16});
    for (int i = 0; i <= 60; ++i) {
      const float loss = step.run(read, next, 1e-2).loss;
      if (i % 20 == 0) std::printf("step %2d: loss %.1f\n", i, static_cast<double>(loss));
    }
    tg::nn::save_adapter(argv[2], model);

    tg::nn::merge_lora(model.model);  // adds s·B·A to each W and removes the adapters
    tg::nn::Generator generator(model);
    std::vector<std::int32_t> text = {tokens[0]};
    generator.extend(text, length, {.temperature = 0}, 1);
    for (const std::int32_t token : text) std::printf("%d ", token);
    std::printf("\n");
    return text == tokens ? 0 : 1;
  } catch (const tg::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
