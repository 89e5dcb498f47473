// Other libraries that decode the same GPT.
#include "tools/bench/other_libraries.h"

#include <sstream>

namespace tg::bench {

namespace {

// 4x4x128x1024x65
std::string words_of(std::span<const std::int64_t> sizes) {
  std::string s;
  for (const std::int64_t n : sizes) s += (s.empty() ? "" : "x") + std::to_string(n);
  return s;
}

}  // namespace

OtherDecoding::OtherDecoding(std::string name, const std::string& script, const Settings& settings,
                             std::span<const std::int64_t> sizes)
    : name_(std::move(name)),
      python_(script, {settings.device.text(), settings.dtype_name(), words_of(sizes),
                       std::to_string(settings.threads)}) {}

double OtherDecoding::seconds_of_step(std::int64_t texts, std::int64_t keys) {
  std::istringstream answer(python_.ask("step " + std::to_string(texts) + " " + std::to_string(keys)));
  double ms = 0;
  return answer >> ms ? ms * 1e-3 : Row::none;
}

OtherDecoding::Replay OtherDecoding::replay(std::int64_t seats, const std::vector<Arrival>& trace) {
  std::string request = "trace " + std::to_string(seats);
  for (const Arrival& a : trace) request += " " + std::to_string(a.prompt) + ":" + std::to_string(a.output);
  std::istringstream answer(python_.ask(request));
  Replay r;
  return answer >> r.seconds >> r.steps ? r : Replay{};
}

std::list<OtherDecoding> other_decodings(const Settings& settings, std::span<const std::int64_t> sizes) {
  std::list<OtherDecoding> others;
  if (!settings.compare) return others;
  const auto add = [&](const char* name, const char* script) {
    const OtherDecoding& other = others.emplace_back(name, script, settings, sizes);
    if (other.ready())
      std::printf("%s\n", other.about().c_str());
    else
      std::printf("no %s to compare with: %s\n", name, other.about().c_str()), others.pop_back();
  };
  if (settings.device.kind == Device::cpu_kind) add("llama.cpp", "llama_decode.py");
  add("PyTorch", "torch_decode.py");
  return others;
}

}  // namespace tg::bench
