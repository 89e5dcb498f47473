// Converts a Hugging Face folder or a GGUF file to a folder in bf16 and to a GGUF file in f16.
//
//   convert MODEL FOLDER FILE.gguf
#include <tilegrad/io/models/pretrained.h>
#include <tilegrad/tilegrad.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: convert MODEL FOLDER FILE.gguf\n");
    return 2;
  }
  try {
    const auto model = tg::nn::from_pretrained(argv[1]);
    tg::nn::save_pretrained(argv[2], model, /*tokenizer=*/nullptr, {.dtype = tg::bf16});
    tg::nn::save_gguf(argv[3], model, /*tokenizer=*/nullptr, {.dtype = "f16"});

    for (const char* path : {argv[2], argv[3]})
      std::printf("%s: %s\n", path, tg::nn::pretrained_info(path).text().c_str());
    return 0;
  } catch (const tg::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
