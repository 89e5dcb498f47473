#include "tools/bench/attention_cell.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <set>

#include <tilegrad/core/base/error.h>
namespace tg::bench {

namespace {

std::string both(std::int64_t a, std::int64_t b) {
  return std::to_string(a) + (a == b ? "" : "/" + std::to_string(b));
}

// A word's number, at most what an AttentionCall holds.
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
  if (equals == std::string::npos && key == "causal") {
    c.causal = true;
  } else if (equals == std::string::npos && key == "free_order") {
    c.free_order = true;
  } else if (equals == std::string::npos && key == "v_in_k") {
    c.v_in_k = true;
  } else if (equals == std::string::npos && key == "ragged") {
    c.ragged = true;
  } else if (equals != std::string::npos && key == "window") {
    c.window = number_of(word, equals, 0);
  } else {
    const std::pair<const char*, std::int64_t*> sizes[] = {
        {"B", &c.B}, {"H", &c.H},   {"Hk", &c.Hk},         {"L", &c.L},       {"T", &c.T},
        {"d", &c.d}, {"dv", &c.dv}, {"length", &c.length}, {"page", &c.page}, {"softcap", &c.softcap}};
    for (const auto& [name, size] : sizes)
      if (equals != std::string::npos && key == name) {
        *size = number_of(word, equals, 1);
        return;
      }
    throw Error("'" + word +
                "' is none of B=, H=, Hk=, L=, T=, d=, dv=, length=, page=, window=, softcap=, causal, "
                "free_order, ragged and v_in_k");
  }
}

// 16,384 tokens of width 2048, without and with a causal mask.
void add_square(std::vector<AttentionCell>& list, std::int64_t L, std::int64_t d) {
  for (bool causal : {false, true})
    list.push_back(
        {.B = 16384 / L, .H = 2048 / d, .Hk = 2048 / d, .L = L, .T = L, .d = d, .dv = d, .causal = causal});
}

std::vector<AttentionCell> parsed(std::initializer_list<const char*> texts) {
  std::vector<AttentionCell> list;
  for (const char* text : texts) list.push_back(parse_cell(text));
  return list;
}

std::vector<AttentionCell> gpu_suite() {
  std::vector<AttentionCell> list;
  for (std::int64_t d : {64, 128, 256})
    for (std::int64_t L : {512, 2048, 8192, 16384})
      if (d != 256 || L != 512) add_square(list, L, d);
  for (const AttentionCell& c :
       parsed({"B=2,H=16,L=8192,d=192,dv=128,causal", "B=4,H=32,Hk=8,L=4096,d=128,causal",
               "B=64,H=6,L=256,d=64,causal", "B=32,H=12,L=1024,d=64,causal"}))
    list.push_back(c);
  return list;
}

std::vector<AttentionCell> cpu_suite() {
  std::vector<AttentionCell> list;
  const auto add = [&](std::int64_t B, std::int64_t H, std::int64_t L, std::int64_t d) {
    for (bool causal : {false, true})
      list.push_back({.B = B, .H = H, .Hk = H, .L = L, .T = L, .d = d, .dv = d, .causal = causal});
  };
  for (std::int64_t d : {64, 128})
    for (std::int64_t L : {1024, 4096})
      for (std::int64_t H : {1, 8}) add(1, H, L, d);
  list.push_back(parse_cell("H=8,Hk=2,L=1024,d=64,causal"));
  add(12, 4, 64, 32);  // the small character GPT
  return list;
}

// Few queries with many keys, and many short heads.
std::vector<AttentionCell> few_queries_suite() {
  std::vector<AttentionCell> list;
  for (std::int64_t d : {64, 128, 256})
    for (std::int64_t T : {2048, 8192, 32768})
      for (std::int64_t L : {1, 16, 128, 512})
        list.push_back({.H = 16, .Hk = 16, .L = L, .T = T, .d = d, .dv = d, .causal = true});
  for (const AttentionCell& c :
       parsed({"H=32,Hk=8,L=1,T=8192,d=128", "H=32,Hk=8,L=16,T=8192,d=128,causal",
               "B=8,H=32,Hk=8,L=1,T=8192,d=128", "H=16,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k",
               "H=128,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k", "B=64,H=32,L=16,d=64", "B=64,H=32,L=64,d=64",
               "B=64,H=32,L=16,d=128", "B=64,H=32,L=64,d=128"}))
    list.push_back(c);
  return list;
}

// Each in one piece, and in pages of 16 and 64; the last two are few of the keys that there is room for.
std::vector<AttentionCell> gpu_decode_suite() {
  std::vector<AttentionCell> list;
  for (AttentionCell c : parsed(
           {"B=64,H=32,Hk=8,L=1,T=8192,d=128", "B=64,H=32,Hk=8,L=1,T=8192,d=128,ragged",
            "B=32,H=32,Hk=8,L=1,T=4096,d=128", "B=1,H=32,Hk=8,L=1,T=65536,d=128",
            "B=1,H=32,Hk=4,L=1,T=1024,d=128", "B=16,H=32,L=1,T=4096,d=128", "B=8,H=32,L=1,T=4096,d=64",
            "B=16,H=16,Hk=8,L=1,T=8192,d=256", "B=32,H=16,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k",
            "B=1,H=16,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k", "B=32,H=128,Hk=1,L=1,T=8192,d=576,dv=512,v_in_k",
            "B=16,H=32,Hk=8,L=1,T=256,d=128,length=128", "B=16,H=32,Hk=8,L=1,T=8192,d=128,length=128"}))
    for (const std::int64_t page : {0, 16, 64}) {
      c.page = page, c.causal = page > 0;
      list.push_back(c);
    }
  return list;
}

// One query after many keys: in the caches of a core; many more of them in memory, for multi-head, grouped,
// multi-query and latent attention; and few of the keys that there is room for.
std::vector<AttentionCell> decode_suite() {
  return parsed({"H=4,L=1,T=1024,d=64", "H=8,Hk=4,L=1,T=1024,d=64", "H=4,Hk=1,L=1,T=1024,d=576,dv=512,v_in_k",
                 "H=8,L=1,T=32768,d=64", "H=32,Hk=8,L=1,T=32768,d=128", "B=4,H=8,Hk=1,L=1,T=32768,d=128",
                 "H=4,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k", "H=16,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k",
                 "H=8,L=1,T=256,d=64,length=128", "H=8,L=1,T=8192,d=64,length=128",
                 "H=4,L=1,T=1024,d=64,page=16", "H=4,L=1,T=1024,d=64,page=64",
                 "H=32,Hk=8,L=1,T=32768,d=128,page=16", "H=32,Hk=8,L=1,T=32768,d=128,page=64",
                 "H=16,Hk=1,L=1,T=32768,d=576,dv=512,v_in_k,page=16", "H=8,L=64,T=4096,d=64,causal",
                 "H=8,L=64,T=4096,d=64,causal,page=16"});
}

}  // namespace

std::string AttentionCell::name() const {
  return (page > 0 ? "paged_attn page " + std::to_string(page)
          : causal ? "flash_attn causal"
                   : "flash_attn") +
         (window >= 0 ? " window " + std::to_string(window) : "") +
         (softcap > 0 ? " softcap " + std::to_string(softcap) : "") + (free_order ? " free order" : "") +
         (v_in_k ? " v in k" : "");
}

std::string AttentionCell::shape() const {
  const std::string rows = ragged ? std::to_string(L) + "/1 to " + std::to_string(T)
                           : length > 0
                               ? std::to_string(L) + "/" + std::to_string(length) + " of " + std::to_string(T)
                               : both(L, T);
  return std::to_string(B) + "×" + both(H, Hk) + "×" + rows + "×" + both(d, dv);
}

std::string AttentionCell::words() const {
  const std::pair<const char*, std::int64_t> sizes[] = {{"B=", B},  {",H=", H}, {",Hk=", Hk}, {",L=", L},
                                                        {",T=", T}, {",d=", d}, {",dv=", dv}};
  std::string s;
  for (const auto& [name, size] : sizes) s += name + std::to_string(size);
  return s + (length > 0 ? ",length=" + std::to_string(length) : "") +
         (page > 0 ? ",page=" + std::to_string(page) : "") + (causal ? ",causal" : "") +
         (window >= 0 ? ",window=" + std::to_string(window) : "") +
         (softcap > 0 ? ",softcap=" + std::to_string(softcap) : "") + (free_order ? ",free_order" : "") +
         (ragged ? ",ragged" : "") + (v_in_k ? ",v_in_k" : "");
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
  return keys_of_query(x, 0, static_cast<int>(i));
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
  if (c.page > 0) c.causal = true;  // paged_attn always is
  if (c.H % c.Hk != 0)
    throw Error("H=" + std::to_string(c.H) + " is no multiple of Hk=" + std::to_string(c.Hk));
  if (c.length > c.T)
    throw Error("length=" + std::to_string(c.length) + " is above T=" + std::to_string(c.T));
  if (c.length > 0 && c.ragged) throw Error("length= and ragged exclude each other");
  if (c.v_in_k && c.dv > c.d)
    throw Error("v_in_k with dv=" + std::to_string(c.dv) + " above d=" + std::to_string(c.d));
  return c;
}

std::vector<AttentionCell> attention_suite(const std::string& name) {
  if (name == "cpu") return cpu_suite();
  if (name == "gpu") return gpu_suite();
  if (name == "gpu-free-order") {
    std::vector<AttentionCell> list = gpu_suite();
    for (AttentionCell& c : list) c.free_order = true;
    return list;
  }
  if (name == "few-queries") return few_queries_suite();
  if (name == "decode") return decode_suite();
  if (name == "gpu-decode") return gpu_decode_suite();
  return parsed({"B=4,H=16,L=4096,d=128,causal,window=512", "B=4,H=16,L=4096,d=128,window=256",
                 "B=1,H=16,L=16384,d=128,causal,window=4096", "B=4,H=16,L=1024,T=8192,d=128,causal",
                 "B=4,H=16,L=1024,T=8192,d=128", "B=4,H=16,L=4096,d=64,dv=128,causal",
                 "B=4,H=16,L=4096,d=192,dv=128", "B=4,H=32,Hk=1,L=4096,d=128,causal",
                 "B=4,H=32,Hk=8,L=4096,d=128,causal,window=1024"});
}

}  // namespace tg::bench
