// Fuzz target of config.json of Hugging Face folders. FormatError is the only way out; what is accepted is a
// model that passes its own checks, its settings come back from metadata, and a config.json that is written
// of it says the same. No piece of memory is asked for that is larger than the file and 64 KiB.
#include <algorithm>
#include <new>

#include <tilegrad/io/checkpoints/model_file.h>

#include <tilegrad/core/base/error.h>
#include "io/interop/hf_config.h"
#include "tests/fuzz/target.h"

#if defined(__SANITIZE_ADDRESS__)
#define TG_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TG_ADDRESS_SANITIZER
#endif
#endif
#ifdef TG_ADDRESS_SANITIZER
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, std::size_t),
                                                         void (*)(const volatile void*));
#endif

using namespace tg;

namespace {

std::size_t largest_piece = 0;

void parse_and_compare(std::string_view bytes) {
  io::HfConfig config;
  try {
    config = io::parse_hf_config(bytes, "fuzz");
  } catch (const FormatError&) {
    return;
  }
  config.model.check();
  const io::Metadata saved = io::to_metadata(config.model);
  fuzz_expect(io::to_metadata(io::model_config(saved, "fuzz")) == saved, "settings come back");
  io::HfConfig out;
  try {
    out = io::hf_config_for(config.model, "fuzz", config.family);
  } catch (const FormatError&) {  // what the reader takes and the writer has no words for
    return;
  }
  out.end_tokens = config.end_tokens, out.start_token = config.start_token;
  const io::HfConfig again = io::parse_hf_config(io::hf_config_json(out, bf16), "fuzz");
  fuzz_expect(io::is_config_of(again, config.model), "the model comes back");
  fuzz_expect(again.end_tokens == config.end_tokens && again.start_token == config.start_token,
              "ids come back");
}

}  // namespace

// Every allocation is seen: by a hook of the address sanitizer, which has its own operators, or by ours.
#ifdef TG_ADDRESS_SANITIZER
[[maybe_unused]] const int hooks = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t bytes) { largest_piece = std::max(largest_piece, bytes); },
    [](const volatile void*) {});
#else
void* operator new(std::size_t bytes) {
  largest_piece = std::max(largest_piece, bytes);
  if (void* p = std::malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
#endif

void fuzz_one(std::string_view bytes) {
  largest_piece = 0;
  parse_and_compare(bytes);
  fuzz_expect(largest_piece <= bytes.size() + (64 << 10), "memory is bounded by the file's size");
}
