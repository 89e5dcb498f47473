#include "tools/generate/many.h"

#include <chrono>
#include <cstdio>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/text_stream.h>
#include "tools/printable.h"

namespace tg {

namespace {

// One text, from its prompt to its end.
struct Written {
  std::string label, text;
  text::TextStream stream;
  bool complete = false;
};

void write(const std::string& s) {
  if (std::fwrite(s.data(), 1, s.size(), stdout) != s.size() || std::fflush(stdout) != 0)
    throw Error("[generate] cannot write to standard output");
}

std::int64_t tokens_in(const std::string& memory, const nn::LanguageModel& model, nn::Precision precision) {
  if (memory.empty()) return 0;
  CacheMemory size;
  if (const std::string mistake = parse_cache_memory(memory, size); !mistake.empty()) throw Error(mistake);
  const double token = static_cast<double>(bytes_of(cache_of_token(model, precision)));
  return static_cast<std::int64_t>(size.tokens ? size.count : size.count / token);
}

}  // namespace

std::vector<std::string> read_prompts(const std::string& path) {
  const std::string file = io::read_file(path, "generate");
  std::vector<std::string> prompts;
  for (std::size_t at = 0; at < file.size();) {
    const std::size_t end = std::min(file.find('\n', at), file.size());
    std::string line;
    for (; at < end; ++at) {
      if (file[at] != '\\') {
        line += file[at];
        continue;
      }
      const char next = ++at < end ? file[at] : '\n';
      if (next != 'n' && next != '\\')
        throw Error("[generate] " + path + ", line " + std::to_string(prompts.size() + 1) +
                    ": a backslash that neither n nor a backslash follows");
      line += next == 'n' ? '\n' : '\\';
    }
    prompts.push_back(line);
    at = end + 1;
  }
  if (prompts.empty()) throw Error("[generate] " + path + " has no lines");
  return prompts;
}

int write_many(const nn::LanguageModel& model, const text::Tokenizer& tokenizer, const ManyTexts& o) {
  nn::Engine engine(model, {.seats = o.seats,
                            .cache_tokens = tokens_in(o.cache_memory, model, o.precision),
                            .threads = o.threads,
                            .precision = o.precision});
  std::vector<std::unique_ptr<Written>> texts;
  int refused = 0;
  std::int64_t tokens = 0;
  for (std::size_t p = 0; p < o.prompts.size(); ++p)
    for (std::int64_t s = 0; s < o.samples; ++s) {
      const std::string& prompt = o.prompts[p];
      const std::string label = "prompt " + std::to_string(p + 1) +
                                (o.samples > 1 ? ", sample " + std::to_string(s + 1) : "");
      try {
        auto t = std::make_unique<Written>(Written{label, prompt, text::TextStream(tokenizer, o.stops)});
        engine.add({.prompt = tokenizer.encode(prompt),
                    .tokens = o.tokens,
                    .sampling = o.sampling,
                    .seed = o.seed + static_cast<std::uint64_t>(s),
                    .report = [&tokens, w = t.get()](const nn::Engine::Token& token) {
                      ++tokens;
                      w->text += w->stream.add(token.token);
                      w->complete = token.end != nn::Engine::End::no || w->stream.stopped();
                      if (w->complete) w->text += w->stream.finish();
                      return !w->complete;
                    }});
        texts.push_back(std::move(t));
      } catch (const Error& e) {
        std::fprintf(stderr, "generate: %s: %s\n", label.c_str(), printable(e.what()).c_str());
        ++refused;
        break;  // its other samples would be refused too
      }
    }
  const auto start = std::chrono::steady_clock::now();
  std::size_t shown = 0, most = 0;
  double used = 0;
  const double room = static_cast<double>(engine.cache().pages() * engine.cache().page_size());
  for (bool more = !texts.empty(); more;) {
    more = engine.step();
    most = std::max(most, engine.scheduler().running());
    used = std::max(used, static_cast<double>(engine.scheduler().cached()) / room);
    for (; shown < texts.size() && texts[shown]->complete; ++shown)
      write("== " + texts[shown]->label + "\n" + texts[shown]->text + "\n");
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const nn::Scheduler& scheduler = engine.scheduler();
  std::fprintf(stderr,
               "%zu texts, %lld tokens in %.2f s: %.0f tokens/s; up to %zu at once; cache %.1f KiB in pages of "
               "%lld, %.0f %% in use at most; %lld tokens found in it, %lld times a text had to wait for pages\n",
               texts.size(), static_cast<long long>(tokens), seconds, static_cast<double>(tokens) / seconds, most,
               static_cast<double>(engine.cache().bytes()) / 1024,
               static_cast<long long>(engine.cache().page_size()), 100 * used,
               static_cast<long long>(scheduler.found()), static_cast<long long>(scheduler.preemptions()));
  return refused;
}

}  // namespace tg
