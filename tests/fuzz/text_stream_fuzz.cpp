// Fuzz target for streamed text. Lines before the first zero byte are stop strings. Each remaining line is a
// token. The streamed output must equal the output of plain code that processes all tokens in one pass.
#include <tilegrad/io/text/text_stream.h>

#include "tests/fuzz/target.h"
#include "tests/support/text_stream_reference.h"

namespace {

using namespace tg;

// Splits the input into lines, which include their line breaks.
std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

}  // namespace

void fuzz_one(std::string_view bytes) {
  const std::size_t zero = std::min(bytes.find('\0'), bytes.size());
  std::vector<std::string> stops = lines_of(bytes.substr(0, zero));
  for (std::string& stop : stops)
    if (stop.size() > 1 && stop.back() == '\n') stop.pop_back();
  const testing::PieceTokenizer tokenizer(lines_of(bytes.substr(std::min(zero + 1, bytes.size()))));
  text::TextStream stream(tokenizer, stops);
  std::string read, shown;
  for (std::int32_t id = 0; id < tokenizer.size(); ++id) {
    read += tokenizer.decode({&id, 1});
    shown += stream.add(id);
    if (!stream.stopped())
      fuzz_expect(shown == std::string_view(read).substr(0, testing::shown_bytes(read, stops)),
                  "text is shown as soon as possible");
  }
  const testing::StoppedText expected = testing::stopped_text(read, stops);
  fuzz_expect(stream.stop() == expected.stop, "the stop string");
  fuzz_expect(shown + stream.finish() == expected.text, "the text");
}
