#include "tools/bench/attention_cell.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <set>
#include <variant>

#include <tilegrad/core/base/error.h>

namespace tg::bench {

namespace {

using Cells = std::vector<AttentionCell>;
using Size = std::int64_t AttentionCell::*;
using Flag = bool AttentionCell::*;

// The keys of a cell's description, in the order in which words() writes them.
struct Word {
  const char* key;
  std::variant<Size, Flag> member;
  std::int64_t least = 1, none = 0;  // for sizes: the minimum, and the value that is omitted
};
const Word all_words[] = {{"B", &AttentionCell::B},
                          {"H", &AttentionCell::H},
                          {"Hk", &AttentionCell::Hk},
                          {"L", &AttentionCell::L},
                          {"T", &AttentionCell::T},
                          {"d", &AttentionCell::d},
                          {"dv", &AttentionCell::dv},
                          {"length", &AttentionCell::length},
                          {"page", &AttentionCell::page},
                          {"causal", &AttentionCell::causal},
                          {"window", &AttentionCell::window, 0, -1},
                          {"softcap", &AttentionCell::softcap},
                          {"nondeterministic", &AttentionCell::nondeterministic},
                          {"ragged", &AttentionCell::ragged},
                          {"v_in_k", &AttentionCell::v_in_k}};

std::string both(std::int64_t a, std::int64_t b) {
  return std::to_string(a) + (a == b ? "" : "/" + std::to_string(b));
}

// Parses the number of a key=value word, up to the limit of an AttentionCall.
std::int64_t number_of(const std::string& word, std::size_t equals, std::int64_t least) {
  const char *from = word.data() + equals + 1, *end = word.data() + word.size();
  std::int64_t n = 0;
  const auto [stop, error] = std::from_chars(from, end, n);
  if (error != std::errc() || stop != end || n < least || n > (1 << 30))
    throw Error("expected a whole number from " + std::to_string(least) + " to 2^30 in '" + word + "'");
  return n;
}

void take_word(AttentionCell& c, const std::string& word, std::set<std::string>& given) {
  const std::size_t equals = word.find('=');
  const std::string key = word.substr(0, equals);
  if (!given.insert(key).second) throw Error("'" + key + "' is given twice");
  const auto known = std::ranges::find(all_words, key, &Word::key);
  if (known == std::end(all_words) ||
      std::holds_alternative<Size>(known->member) != (equals != std::string::npos))
    throw Error("'" + word +
                "' is unknown: expected one of B=, H=, Hk=, L=, T=, d=, dv=, length=, page=, window=, "
                "softcap=, causal, "
                "nondeterministic, ragged or v_in_k");
  if (const Size* size = std::get_if<Size>(&known->member))
    c.*(*size) = number_of(word, equals, known->least);
  else
    c.*std::get<Flag>(known->member) = true;
}

void add(Cells& list, std::initializer_list<const char*> descriptions) {
  for (const char* text : descriptions) list.push_back(parse_cell(text));
}

// Adds a cell without and with a causal mask.
void add_square(Cells& list, std::int64_t B, std::int64_t H, std::int64_t L, std::int64_t d) {
  for (bool causal : {false, true})
    list.push_back({.B = B, .H = H, .Hk = H, .L = L, .T = L, .d = d, .dv = d, .causal = causal});
}

Cells gpu_suite(bool nondeterministic) {
  Cells list;
  for (std::int64_t d : {64, 128, 256})
    for (std::int64_t L : {512, 2048, 8192, 16384})  // 16,384 tokens of width 2048
      if (d != 256 || L != 512) add_square(list, 16384 / L, 2048 / d, L, d);
  add(list, {"B=2,H=16,L=8192,d=192,dv=128,causal", "B=4,H=32,Hk=8,L=4096,d=128,causal",
             "B=64,H=6,L=256,d=64,causal", "B=32,H=12,L=1024,d=64,causal"});
  for (AttentionCell& c : list) c.nondeterministic = nondeterministic;
  return list;
}

Cells cpu_suite() {
  Cells list;
  for (std::int64_t d : {64, 128})
    for (std::int64_t L : {1024, 4096})
      for (std::int64_t H : {1, 8}) add_square(list, 1, H, L, d);
  add(list, {"H=8,Hk=2,L=1024,d=64,causal"});
  add_square(list, 12, 4, 64, 32);  // the small character-level GPT
  return list;
}

// Few queries with many keys, for various numbers of heads and head sizes.
Cells few_queries_suite() {
  Cells list;
  for (std::int64_t d : {64, 128, 256})
    for (std::int64_t T : {2048, 8192, 32768})
      for (std::int64_t L : {1, 16, 128, 512})
        list.push_back({.H = 16, .Hk = 16, .L = L, .T = T, .d = d, .dv = d, .causal = true});
  add(list,
      {"H=32,Hk=8,L=1,T=8192,d=128", "H=32,Hk=8,L=16,T=8192,d=128,causal", "B=8,H=32,Hk=8,L=1,T=8192,d=128",
       "H=16,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k", "H=128,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k",
       "B=64,H=32,L=16,d=64", "B=64,H=32,L=64,d=64", "B=64,H=32,L=16,d=128", "B=64,H=32,L=64,d=128"});
  return list;
}

// Each cell is measured with a contiguous cache, and with pages of 16 and 64 tokens. In the last two cells,
// only some of the keys are valid.
Cells gpu_decode_suite() {
  Cells whole, list;
  add(whole,
      {"B=64,H=32,Hk=8,L=1,T=8192,d=128", "B=64,H=32,Hk=8,L=1,T=8192,d=128,ragged",
       "B=32,H=32,Hk=8,L=1,T=4096,d=128", "B=1,H=32,Hk=8,L=1,T=65536,d=128", "B=1,H=32,Hk=4,L=1,T=1024,d=128",
       "B=16,H=32,L=1,T=4096,d=128", "B=8,H=32,L=1,T=4096,d=64", "B=16,H=16,Hk=8,L=1,T=8192,d=256",
       "B=32,H=16,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k", "B=1,H=16,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k",
       "B=32,H=128,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k", "B=16,H=32,Hk=8,L=1,T=256,d=128,length=128",
       "B=16,H=32,Hk=8,L=1,T=8192,d=128,length=128"});
  for (AttentionCell c : whole)
    for (const std::int64_t page : {0, 16, 64}) {
      c.page = page, c.causal = page > 0;
      list.push_back(c);
    }
  return list;
}

}  // namespace

std::string AttentionCell::name() const {
  return (page > 0 ? "paged_attn page " + std::to_string(page)
          : causal ? "flash_attn causal"
                   : "flash_attn") +
         (window >= 0 ? " window " + std::to_string(window) : "") +
         (softcap > 0 ? " softcap " + std::to_string(softcap) : "") +
         (nondeterministic ? " nondeterministic" : "") + (v_in_k ? " v in k" : "");
}

std::string AttentionCell::shape() const {
  const std::string rows = ragged ? std::to_string(L) + "/1 to " + std::to_string(T)
                           : length > 0
                               ? std::to_string(L) + "/" + std::to_string(length) + " of " + std::to_string(T)
                               : both(L, T);
  return std::to_string(B) + "×" + both(H, Hk) + "×" + rows + "×" + both(d, dv);
}

std::string AttentionCell::words() const {
  std::string s;
  for (const Word& w : all_words) {
    const Size* size = std::get_if<Size>(&w.member);
    if (size && this->*(*size) != w.none)
      s += std::string(",") + w.key + "=" + std::to_string(this->*(*size));
    else if (!size && this->*std::get<Flag>(w.member))
      s += std::string(",") + w.key;
  }
  return s.substr(1);
}

std::vector<std::int32_t> AttentionCell::lengths() const {
  std::vector<std::int32_t> all(static_cast<std::size_t>(B), static_cast<std::int32_t>(keys()));
  if (!ragged) return all;
  for (std::int64_t b = 0; b < B - 1; ++b)
    all[static_cast<std::size_t>(b)] = static_cast<std::int32_t>(1 + b * (T - 1) / (B - 1));
  std::shuffle(all.begin(), all.end(), std::mt19937_64(1));
  return all;
}

std::vector<AttentionCell> AttentionCell::entries() const {
  if (!ragged) return {*this};
  std::vector<AttentionCell> all;
  for (const std::int32_t n : lengths()) {
    all.push_back(*this);
    all.back().B = 1, all.back().length = n, all.back().ragged = false;
  }
  return all;
}

KeyRange keys_seen(const AttentionCell& c, std::int64_t i) {
  AttentionCall x;
  x.L = static_cast<int>(c.L), x.T = static_cast<int>(c.keys()), x.causal = c.causal;
  if (c.window >= 0) x.window_left = static_cast<int>(c.window);
  if (c.window >= 0 && !c.causal) x.window_right = static_cast<int>(c.window);
  return keys_visible_to(x, 0, static_cast<int>(i));
}

double AttentionCell::pairs() const {
  double n = 0;
  for (std::int64_t i = 0; i < L; ++i) {
    const KeyRange keys = keys_seen(*this, i);
    n += keys.to - keys.from;
  }
  return n;
}

double AttentionCell::flops(bool backward) const {
  if (ragged) {
    double n = 0;
    for (const AttentionCell& c : entries()) n += c.flops(backward);
    return n;
  }
  return 2 * static_cast<double>(B * H) * pairs() * static_cast<double>(d + dv) * (backward ? 2.5 : 1);
}

AttentionCell parse_cell(const std::string& text) {
  AttentionCell c;
  std::set<std::string> given;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    take_word(c, text.substr(at, end - at), given);
    at = end + 1;
  }
  for (const char* key : {"L", "d"})
    if (!given.contains(key)) throw Error(std::string("'") + key + "=' is missing");
  if (!given.contains("Hk")) c.Hk = c.H;
  if (!given.contains("T")) c.T = c.L;
  if (!given.contains("dv")) c.dv = c.d;
  if (c.page > 0) c.causal = true;  // paged_attn is always causal
  if (c.H % c.Hk != 0)
    throw Error("H=" + std::to_string(c.H) + " is not a multiple of Hk=" + std::to_string(c.Hk));
  if (c.length > c.T)
    throw Error("length=" + std::to_string(c.length) + " is above T=" + std::to_string(c.T));
  if (c.length > 0 && c.ragged) throw Error("length= and ragged exclude each other");
  if (c.v_in_k && c.dv > c.d)
    throw Error("v_in_k with dv=" + std::to_string(c.dv) + " above d=" + std::to_string(c.d));
  return c;
}

std::vector<AttentionCell> attention_suite(const std::string& name) {
  if (name == "cpu") return cpu_suite();
  if (name == "gpu" || name == "gpu-nondeterministic") return gpu_suite(name != "gpu");
  if (name == "few-queries") return few_queries_suite();
  if (name == "gpu-decode") return gpu_decode_suite();
  Cells list;
  if (name == "decode")
    // One query with many keys. The first cells have a cache that fits into a core's caches. The following
    // cells have larger caches in memory, for multi-head, grouped, multi-query and latent attention. In the
    // last cells, only some of the keys are valid.
    add(list,
        {"H=4,L=1,T=1024,d=64", "H=8,Hk=4,L=1,T=1024,d=64", "H=4,Hk=1,L=1,T=1024,d=576,dv=512,v_in_k",
         "H=8,L=1,T=32768,d=64", "H=32,Hk=8,L=1,T=32768,d=128", "B=4,H=8,Hk=1,L=1,T=32768,d=128",
         "H=4,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k", "H=16,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k",
         "H=8,L=1,T=256,d=64,length=128", "H=8,L=1,T=8192,d=64,length=128", "H=4,L=1,T=1024,d=64,page=16",
         "H=4,L=1,T=1024,d=64,page=64", "H=32,Hk=8,L=1,T=32768,d=128,page=16",
         "H=32,Hk=8,L=1,T=32768,d=128,page=64", "H=16,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k,page=16",
         "H=8,L=64,T=4096,d=64,causal", "H=8,L=64,T=4096,d=64,causal,page=16"});
  else
    add(list,
        {"B=4,H=16,L=4096,d=128,causal,window=512", "B=4,H=16,L=4096,d=128,window=256",
         "B=1,H=16,L=16384,d=128,causal,window=4096", "B=4,H=16,L=1024,T=8192,d=128,causal",
         "B=4,H=16,L=1024,T=8192,d=128", "B=4,H=16,L=4096,d=64,dv=128,causal", "B=4,H=16,L=4096,d=192,dv=128",
         "B=4,H=32,Hk=1,L=4096,d=128,causal", "B=4,H=32,Hk=8,L=4096,d=128,causal,window=1024"});
  return list;
}

}  // namespace tg::bench
