// Encodes strings for tests/interop/compare_tokenizers.py.
//   encode_strings TOKENIZER.JSON STRINGS IDS
// The file STRINGS contains the length (u32) and the bytes of each string. The program writes the file IDS,
// which contains the number of ids (u32) and the ids (u32) of each string. Each string is also decoded after
// encoding. If it does not round-trip, it is printed on standard error. The last line on standard output
// contains the number of these strings, and the seconds for encoding.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/hf_tokenizer.h>

int main(int argc, char** argv) {
  using namespace tg;
  if (argc != 4) return 2;
  try {
    const text::HfTokenizer tokenizer = text::HfTokenizer::open(argv[1]);
    const std::string strings = io::read_file(argv[2], "encode_strings");
    std::string out;
    double seconds = 0;
    long lost = 0;
    for (std::size_t i = 0; i + 4 <= strings.size();) {
      std::uint32_t length = 0;
      std::memcpy(&length, strings.data() + i, 4);
      const std::string_view text = std::string_view(strings).substr(i + 4, length);
      i += 4 + length;
      const auto start = std::chrono::steady_clock::now();
      const std::vector<std::int32_t> ids = tokenizer.encode_whole(text);
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const auto count = static_cast<std::uint32_t>(ids.size());
      out.append(reinterpret_cast<const char*>(&count), 4);
      out.append(reinterpret_cast<const char*>(ids.data()), 4 * ids.size());
      if (tokenizer.is_byte_level() && tokenizer.decode(tokenizer.encode(text)) != text) ++lost;
    }
    io::replace_file(argv[3], std::array<std::string_view, 1>{out}, "encode_strings");
    std::printf("%ld %.6f\n", lost, seconds);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "encode_strings: %s\n", e.what());
    return 1;
  }
}
