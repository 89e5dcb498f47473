// Continues prompts with a model that train saved. Continues the first prompt token by token, then all
// prompts in parallel.
//   build/examples/generate_text RUN PROMPT...
#include <cstdio>
#include <string>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/tilegrad.h>

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: generate_text RUN PROMPT...\n");
    return 2;
  }
  const std::string file = "model.safetensors";
  const tg::io::Checkpoint checkpoint(argv[1]);
  const tg::io::SafeTensors saved = checkpoint.load(file);
  const auto tokenizer = tg::text::load_tokenizer(saved.metadata, file);
  tg::nn::Params params = tg::nn::Params::unset(tg::f32);
  const tg::nn::Model model(params, tg::io::model_config(saved, file));
  checkpoint.restore({{{file, params.all()}}});

  tg::nn::Generator generator(model);
  std::vector<std::int32_t> tokens = tokenizer->encode(argv[2]);
  std::printf("%s", argv[2]);
  const auto print = [&](std::int32_t token) {
    std::printf("%s", tokenizer->decode({&token, 1}).c_str());
    return true;
  };
  generator.extend(tokens, /*count=*/36, {.temperature = 0}, /*seed=*/1, print);
  std::printf("\n");

  tg::nn::Engine engine(model, {.slots = 8});
  std::vector<std::string> results(argv + 2, argv + argc);
  for (std::string& result : results)
    engine.add({.prompt = tokenizer->encode(result),
                .tokens = 30,
                .sampling = {.temperature = 0.2, .top_k = 5},
                .seed = 1,
                .report = [&](const tg::nn::Engine::Token& t) {
                  result += tokenizer->decode({&t.token, 1});
                  return true;
                }});
  engine.run();
  for (const std::string& result : results) std::printf("%s\n", result.c_str());
  return 0;
} catch (const tg::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
