#include "tools/generate/many.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/text_stream.h>
#include "core/base/messages.h"
#include "tools/train_report.h"

namespace tg {

namespace {

std::int64_t tokens_in(const GenerateOptions& o, const nn::LanguageModel& model) {
  if (!o.cache_size) return 0;
  const CacheMemory& size = *o.cache_size;
  const auto token = static_cast<double>(bytes_of(cache_of_token(model, o.precision(), o.cache_dtype())));
  return static_cast<std::int64_t>(size.tokens ? size.count : size.count / token);
}

// Reads one prompt per line of a file. In a line, \n is a line break and \\ a backslash.
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
                    ": a backslash must be followed by n or a backslash");
      line += next == 'n' ? '\n' : '\\';
    }
    prompts.push_back(line);
    at = end + 1;
  }
  if (prompts.empty()) throw Error("[generate] " + path + " has no lines");
  return prompts;
}

// Generates sequences in parallel and writes them in the order of their prompts, as they complete.
class Writer {
 public:
  Writer(const nn::LanguageModel& model, const OpenedModel& opened, const GenerateOptions& o)
      : opened_(opened),
        tokenizer_(*opened.tokenizer),
        o_(o),
        engine_(model, {.slots = o.slots,
                        .cache_tokens = tokens_in(o, model),
                        .threads = o.thread_count(),
                        .precision = o.precision(),
                        .cache_dtype = o.cache_dtype()}) {}

  // Returns the number of prompts that cannot be continued.
  int add_all() {
    int refused = 0;
    const std::vector<std::string> prompts =
        o_.prompts.empty() ? std::vector{o_.prompt} : read_prompts(o_.prompts);
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      const std::string label = "prompt " + std::to_string(p + 1);
      try {
        const std::vector<std::int32_t> prompt = tokenizer_.encode_whole(prompts[p]);
        if (o_.beams > 0) {
          search(label, prompts[p], prompt);
        } else {
          for (std::int64_t s = 0; s < o_.samples; ++s)
            sample(o_.samples > 1 ? label + ", sample " + std::to_string(s + 1) : label, prompts[p], prompt,
                   static_cast<std::uint64_t>(o_.seed) + static_cast<std::uint64_t>(s));
        }
      } catch (const Error& e) {
        std::fprintf(stderr, "generate: %s: %s\n", label.c_str(), printable(e.what()).c_str());
        ++refused;
      }
    }
    return refused;
  }

  void run() {
    if (texts_.empty()) return;
    const auto start = std::chrono::steady_clock::now();
    std::size_t shown = 0, most = 0;
    double used = 0;
    const double room = static_cast<double>(engine_.cache().pages() * engine_.cache().page_size());
    for (bool more = true; more;) {
      more = engine_.step();
      most = std::max(most, engine_.scheduler().running());
      used = std::max(used, static_cast<double>(engine_.scheduler().held()) / room);
      for (; shown < texts_.size() && texts_[shown]->complete; ++shown) write_text(texts_[shown]->text);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const nn::Scheduler& scheduler = engine_.scheduler();
    std::fprintf(stderr,
                 "%s, %s in %.2f s: %.0f tokens/s; up to %zu in parallel; cache %s in pages of %lld, "
                 "peak use %.0f %%; %s reused from it; preempted for pages %s\n",
                 counted(std::ssize(texts_), "sequence").c_str(), counted(tokens_, "token").c_str(), seconds,
                 static_cast<double>(tokens_) / seconds, most,
                 size_text(static_cast<double>(engine_.cache().bytes())).c_str(),
                 static_cast<long long>(engine_.cache().page_size()), 100 * used,
                 counted(scheduler.found(), "token").c_str(),
                 counted(scheduler.preemptions(), "time").c_str());
  }

 private:
  struct Text {
    std::string text;
    text::TextStream stream;
    bool complete = false;
  };

  void sample(const std::string& label, const std::string& begin, const std::vector<std::int32_t>& prompt,
              std::uint64_t seed) {
    auto t =
        std::make_unique<Text>(Text{"== " + label + "\n" + begin, text::TextStream(tokenizer_, o_.stops)});
    engine_.add(nn::Engine::Request{.prompt = prompt,
                                    .tokens = o_.max_tokens,
                                    .sampling = o_.sampling,
                                    .seed = seed,
                                    .report = [this, t = t.get()](const nn::Engine::Token& token) {
                                      ++tokens_;
                                      const bool ends = opened_.is_end(token.token);
                                      if (!ends) t->text += t->stream.add(token.token);
                                      t->complete =
                                          ends || token.end != nn::Engine::End::no || t->stream.stopped();
                                      if (t->complete) t->text += t->stream.finish() + "\n";
                                      return !t->complete;
                                    }});
    texts_.push_back(std::move(t));
  }

  void search(const std::string& label, const std::string& begin, const std::vector<std::int32_t>& prompt) {
    auto t = std::make_unique<Text>(Text{"", text::TextStream(tokenizer_)});
    engine_.search({.prompt = prompt,
                    .tokens = o_.max_tokens,
                    .beams = o_.beams,
                    .ends = {opened_.end_tokens.begin(), opened_.end_tokens.end()},
                    .report = [this, t = t.get(), label, begin](const std::vector<nn::Hypothesis>& found) {
                      for (std::size_t i = 0; i < found.size(); ++i) {
                        t->text += "== " + label + ", beam " + std::to_string(i + 1) +
                                   formatted(", log p = %.3f\n", found[i].score) + begin +
                                   without_end(found[i].tokens) + "\n";
                        tokens_ += std::ssize(found[i].tokens);
                      }
                      t->complete = true;
                    }});
    texts_.push_back(std::move(t));
  }

  std::string without_end(std::span<const std::int32_t> tokens) const {
    if (!tokens.empty() && opened_.is_end(tokens.back())) tokens = tokens.first(tokens.size() - 1);
    return tokenizer_.decode(tokens);
  }

  const OpenedModel& opened_;
  const text::Tokenizer& tokenizer_;
  const GenerateOptions& o_;
  nn::Engine engine_;
  std::vector<std::unique_ptr<Text>> texts_;
  std::int64_t tokens_ = 0;
};

}  // namespace

void write_text(const std::string& s) {
  if (std::fwrite(s.data(), 1, s.size(), stdout) != s.size() || std::fflush(stdout) != 0)
    throw Error("[generate] cannot write to standard output");
}

int write_many(const nn::LanguageModel& model, const OpenedModel& opened, const GenerateOptions& o) {
  Writer writer(model, opened, o);
  const int refused = writer.add_all();
  writer.run();
  return refused;
}

}  // namespace tg
