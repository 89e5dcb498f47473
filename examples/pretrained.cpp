// Loads a model from a Hugging Face folder, prints its description, and continues some tokens.
//    pretrained FOLDER TOKEN...
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/tilegrad.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: pretrained FOLDER TOKEN...\n");
    return 2;
  }
  try {
    const auto model = tg::nn::from_pretrained(argv[1]);
    std::printf("%s: %s\n%s\n", argv[1], model.info.text().c_str(), model.info.config.text().c_str());
    std::vector<std::int32_t> text;
    for (int i = 2; i < argc; ++i) text.push_back(std::atoi(argv[i]));
    tg::nn::Generator generator(model);
    generator.extend(text, 12, {.temperature = 0}, 1);
    for (const std::int32_t token : text) std::printf("%d ", token);
    std::printf("\n");
    return 0;
  } catch (const tg::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
