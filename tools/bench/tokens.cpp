// Measures tokenizers on one core: learning merges, encoding and decoding.
#include <cmath>

#include <tilegrad/core/base/rng.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/text.h>
#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

// Generates 1 MB of words with frequencies as in a natural language. There are 30,000 words, and the n-th
// word has a frequency proportional to 1/n.
std::string made_up_text() {
  PhiloxBlock block{};
  std::uint32_t drawn = 0;
  const auto uniform = [&] {
    if (drawn % 4 == 0) block = philox({drawn / 4, 0, 0, 0}, 1);
    return (block[drawn++ % 4] + 0.5) * 0x1p-32;
  };
  std::vector<std::string> words(30000);
  for (std::string& word : words)
    for (auto n = static_cast<int>(1 + 8 * uniform()); n > 0; --n)
      word += static_cast<char>('a' + 25 * uniform() * uniform());
  std::string text;
  while (text.size() < 1'000'000) {
    text += words[static_cast<std::size_t>(std::pow(30000, uniform())) - 1];
    text += uniform() < 0.1 ? ",\n" : " ";
  }
  return text;
}

}  // namespace

void run_tokens(Report& report) {
  const Settings& settings = report.settings;
  const std::string text = settings.text.empty() ? made_up_text() : io::read_file(settings.text, "bench");
  const std::int64_t vocabulary = report.sizes({1256})[0];
  const auto add = [&](const std::string& name, auto&& work) {
    if (!report.selects(name)) return;
    const double seconds = best_seconds(settings.seconds, work);
    Row row{name, std::to_string(text.size()) + " bytes", "", "", 1};
    report.add(row.time(seconds).at(static_cast<double>(text.size()) / seconds * 1e-6, "MB/s"));
  };
  add("learn " + std::to_string(vocabulary - 256) + " merges", [&] { text::Bpe::train(text, vocabulary); });
  const text::Bpe bpe = text::Bpe::train(text, vocabulary);
  add("encode bpe", [&] { bpe.encode(text); });
  const text::ByteTokenizer bytes;
  add("encode bytes", [&] { bytes.encode(text); });
  const text::CharVocab chars(settings.text.empty() ? text : text::load_text(settings.text));
  add("encode chars", [&] { chars.encode(text); });
  const std::vector<std::int32_t> ids = bpe.encode(text);
  add("decode bpe", [&] { bpe.decode(ids); });
}

}  // namespace tg::bench
