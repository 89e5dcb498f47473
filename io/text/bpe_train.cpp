// Learns merges: counts pairs over the distinct words of a text, and updates the counts after each merge.
#include <algorithm>
#include <queue>
#include <unordered_map>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/text/bpe.h>

namespace tg::text {
namespace {

struct CountedWord {
  std::vector<std::int32_t> tokens;
  std::int64_t count = 0;
};

// Returns the distinct words of the text in order of first occurrence, as bytes.
std::vector<CountedWord> count_words(std::string_view text) {
  std::unordered_map<std::string_view, std::size_t> places;
  std::vector<CountedWord> words;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = word_end(WordRule::gpt2, text, i);
    const std::string_view word = text.substr(i, end - i);
    i = end;
    const auto [place, is_new] = places.try_emplace(word, words.size());
    if (is_new) {
      words.emplace_back();
      for (const char c : word) words.back().tokens.push_back(static_cast<unsigned char>(c));
    }
    ++words[place->second].count;
  }
  return words;
}

struct PairHash {
  std::size_t operator()(const Bpe::Merge& pair) const {
    const auto key = static_cast<std::uint64_t>(pair.first) << 32 | static_cast<std::uint32_t>(pair.second);
    return key * 0x9e3779b97f4a7c15u >> 16;
  }
};

class PairCounts {
 public:
  explicit PairCounts(std::string_view text) : words_(count_words(text)) {
    for (std::size_t w = 0; w < words_.size(); ++w) add(w, words_[w].count);
    for (const auto& [pair, info] : pairs_) queue_.push({info.count, pair});
  }

  // Finds the most frequent pair that occurs at least twice and is not too long. Returns false if there is
  // none.
  bool take_best(Bpe::Merge& best) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      if (bytes_[index(top.pair.first)] + bytes_[index(top.pair.second)] > max_word_bytes) continue;
      const std::int64_t now = pairs_[top.pair].count;
      if (now == top.count && now >= 2) {
        best = top.pair;
        return true;
      }
      // If the count has increased, the queue also has an entry with the new count.
      if (now < top.count && now >= 2) queue_.push({now, top.pair});
    }
    return false;
  }

  // Replaces every occurrence of the pair by `token`, from left to right.
  void merge(const Bpe::Merge& pair, std::int32_t token) {
    bytes_.push_back(bytes_[index(pair.first)] + bytes_[index(pair.second)]);
    const std::vector<std::size_t> where = std::move(pairs_[pair].words);
    for (const std::size_t w : where) {
      std::vector<std::int32_t>& tokens = words_[w].tokens;
      add(w, -words_[w].count);
      std::size_t kept = 0;
      for (std::size_t i = 0; i < tokens.size(); ++i, ++kept) {
        const bool both = i + 1 < tokens.size() && Bpe::Merge(tokens[i], tokens[i + 1]) == pair;
        tokens[kept] = both ? token : tokens[i];
        if (both) ++i;
      }
      tokens.resize(kept);
      add(w, words_[w].count, token);
    }
    std::sort(made_.begin(), made_.end());
    made_.erase(std::unique(made_.begin(), made_.end()), made_.end());
    for (const Bpe::Merge& made : made_) queue_.push({pairs_[made].count, made});
    made_.clear();
  }

 private:
  struct Info {
    std::int64_t count = 0;
    std::vector<std::size_t> words;  // words that contain, or once contained, the pair
  };
  struct Candidate {
    std::int64_t count;
    Bpe::Merge pair;
    bool operator<(const Candidate& o) const {  // largest count first, then smallest ids
      return count != o.count ? count < o.count : pair > o.pair;
    }
  };

  // Adds the word's pairs to the counts. If `made` ≥ 0, only pairs with the token `made` can be new in the
  // word. −1 means that all pairs can be new.
  void add(std::size_t w, std::int64_t count, std::int32_t made = -1) {
    const std::vector<std::int32_t>& tokens = words_[w].tokens;
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const Bpe::Merge pair(tokens[i], tokens[i + 1]);
      Info& info = pairs_[pair];
      info.count += count;
      if (count < 0 || (made >= 0 && pair.first != made && pair.second != made)) continue;
      if (info.words.empty() || info.words.back() != w) info.words.push_back(w);
      if (made >= 0) made_.push_back(pair);
    }
  }

  static std::size_t index(std::int32_t token) { return static_cast<std::size_t>(token); }

  std::vector<CountedWord> words_;
  std::vector<std::size_t> bytes_ = std::vector<std::size_t>(256, 1);  // of each token
  std::unordered_map<Bpe::Merge, Info, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Bpe::Merge> made_;  // pairs with the newest token
};

}  // namespace

Bpe Bpe::train(std::string_view text, std::int64_t vocabulary, const std::function<void()>& text_read) {
  if (vocabulary < 257 || vocabulary > max_vocabulary)
    throw Error("[bpe] got a vocabulary of " + std::to_string(vocabulary) + ", expected 257 to " +
                std::to_string(max_vocabulary));
  PairCounts counts(text);
  if (text_read) text_read();
  std::vector<Merge> merges;
  Merge best;
  while (256 + static_cast<std::int64_t>(merges.size()) < vocabulary && counts.take_best(best)) {
    counts.merge(best, static_cast<std::int32_t>(256 + merges.size()));
    merges.push_back(best);
  }
  return Bpe(std::move(merges));
}

}  // namespace tg::text
