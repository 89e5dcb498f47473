#include "tools/bench/attention_traffic.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <sstream>

#include "tools/bench/settings.h"

namespace tg::bench {

namespace {

// The tile size of a kernel. The kernel supports head sizes up to `d` for q and k, and up to `dv` for v.
struct KernelTile {
  std::int64_t d, dv;
  Tile tile;
};

constexpr KernelTile hopper_forward[] = {
    {64, 64, {192, 128, 3}}, {192, 128, {128, 128, 2}}, {256, 256, {128, 80, 2}}, {576, 512, {64, 64, 1}}};
constexpr KernelTile hopper_few_keys = {64, 64, {256, 64, 8}};  // forward, T below 2048
constexpr KernelTile hopper_short[] = {{64, 64, {64, 64, 3}}, {128, 128, {64, 64, 2}}};  // forward, L ≤ 64
constexpr KernelTile hopper_backward[] = {
    {64, 64, {128, 128, 2}}, {128, 128, {80, 128, 2}}, {192, 128, {48, 128, 2}}, {256, 256, {64, 64, 2}}};
constexpr KernelTile hopper_backward_few_keys = {
    128, 128, {64, 128, 2}};  // T ≤ 1024, masked ≤ 2048; deterministic
// For f32, computed as an f16 split.
constexpr KernelTile hopper_forward_f32[] = {{64, 64, {192, 64, 3}}, {128, 128, {128, 64, 2}}},
                     hopper_backward_f32[] = {{64, 64, {64, 128, 2}}, {128, 128, {32, 128, 2}}};
// Kernels for other GPUs have as many stages as fit in shared memory. Most have two stages. The forward
// kernel for head size 256 has one.
constexpr KernelTile forward_16_bits[] = {{64, 64, {128, 64, 2}},   {96, 96, {128, 32, 2}},
                                          {128, 128, {128, 64, 2}}, {192, 128, {128, 32, 2}},
                                          {256, 256, {64, 64, 1}},  {576, 512, {64, 32, 2}}};
constexpr KernelTile forward_f32[] = {{64, 64, {128, 32, 2}}, {128, 128, {64, 16, 2}}};
constexpr KernelTile one_pass[] = {
    {128, 128, {64, 128, 2}}, {256, 256, {64, 64, 2}}, {576, 512, {64, 32, 2}}};

// The first kernel that supports the cell's head sizes, or null if there is none.
const KernelTile* find_tile(std::span<const KernelTile> tiles, const AttentionCell& c) {
  for (const KernelTile& kernel : tiles)
    if (c.d <= kernel.d && c.dv <= kernel.dv) return &kernel;
  return nullptr;
}

bool is_hopper(const std::string& gpu) {
  for (const char* name : {"H100", "H200", "H800", "H20", "GH200"})
    if (gpu.find(name) != std::string::npos) return true;
  return false;
}

constexpr double stat = 4;  // bytes of a row statistic (ξ, u), and of an element of the z_Q accumulator

// The number of elements of each operand.
struct Elements {
  double q, k, v, o, rows, scores, heads;
  explicit Elements(const AttentionCell& c)
      : q(product({c.B, c.H, c.L, c.d})),
        k(product({c.B, c.Hk, c.T, c.d})),
        v(product({c.B, c.Hk, c.T, c.dv})),
        o(product({c.B, c.H, c.L, c.dv})),
        rows(product({c.B, c.H, c.L})),
        scores(product({c.B, c.H, c.L, c.T})),
        heads(product({c.B, c.H})) {}
  static double product(std::initializer_list<std::int64_t> sizes) {
    double n = 1;
    for (std::int64_t s : sizes) n *= static_cast<double>(s);
    return n;
  }
};

// For each tile of queries, counts the keys that at least one of its queries sees. Returns the sum over all
// tiles.
double keys_over_tiles(const AttentionCell& c, std::int64_t queries) {
  double n = 0;
  for (std::int64_t i0 = 0; i0 < c.L; i0 += queries) {
    std::int64_t from = c.T, to = 0;
    for (std::int64_t i = i0; i < std::min(i0 + queries, c.L); ++i)
      if (const KeyRange seen = keys_seen(c, i); seen.from < seen.to)
        from = std::min<std::int64_t>(from, seen.from), to = std::max<std::int64_t>(to, seen.to);
    n += static_cast<double>(std::max<std::int64_t>(to - from, 0));
  }
  return n;
}

// For each tile of keys, counts the queries that see at least one of its keys. Returns the sum over all
// tiles.
double queries_over_tiles(const AttentionCell& c, std::int64_t keys) {
  double n = 0;
  for (std::int64_t i = 0; i < c.L; ++i)
    if (const KeyRange seen = keys_seen(c, i); seen.from < seen.to)
      n += static_cast<double>((seen.to - 1) / keys - seen.from / keys + 1);
  return n;
}

// Parses the last field of a CSV line, without quotes and thousands separators.
double last_number(std::string line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '"')) line.pop_back();
  std::string digits = line.substr(line.rfind('"') + 1);
  std::erase(digits, ',');
  return std::strtod(digits.c_str(), nullptr);
}

std::string quoted(const std::string& s) {
  std::string q = "'";
  for (char c : s) q += c == '\'' ? "'\\''" : std::string(1, c);
  return q + "'";
}

}  // namespace

std::int64_t Tile::on_chip(const AttentionCell& c, bool backward, std::int64_t size) const {
  if (!backward) return (queries * c.d + stages * keys * (c.d + c.dv)) * size;
  return (keys * (c.d + c.dv) + stages * queries * (c.d + c.dv) + queries * keys) * size;
}

Tile tile_of(const AttentionCell& c, bool backward, std::int64_t size, const std::string& gpu) {
  using Tiles = std::span<const KernelTile>;
  if (gpu.empty()) return backward ? Tile{96, 192} : Tile{64, 128};
  if (is_hopper(gpu) && size == 4)
    if (const KernelTile* kernel =
            find_tile(backward ? Tiles(hopper_backward_f32) : Tiles(hopper_forward_f32), c))
      return kernel->tile;
  if (is_hopper(gpu) && size == 2) {
    const KernelTile* few_queries = backward || c.L > 64 ? nullptr : find_tile(hopper_short, c);
    if (few_queries) return few_queries->tile;
    if (const KernelTile* kernel = find_tile(backward ? Tiles(hopper_backward) : Tiles(hopper_forward), c)) {
      const bool masked = c.causal || c.window >= 0;
      if (backward && kernel == &hopper_backward[1] && !c.nondeterministic && c.T <= (masked ? 2048 : 1024))
        return hopper_backward_few_keys.tile;
      return !backward && kernel == hopper_forward && c.T < 2048 ? hopper_few_keys.tile : kernel->tile;
    }
  }
  const Tiles tiles = backward ? Tiles(one_pass) : size == 2 ? Tiles(forward_16_bits) : Tiles(forward_f32);
  const KernelTile* const kernel = find_tile(tiles, c);
  return kernel ? kernel->tile : tiles.back().tile;
}

Bytes materialised(const AttentionCell& c, bool backward, std::int64_t size) {
  const Elements n(c);
  const auto bytes = static_cast<double>(size);
  // Kernels: S = Q·Kᵀ; P = softmax(S); O = P·V.
  if (!backward) return {bytes * (n.q + n.k + 2 * n.scores + n.v), bytes * (2 * n.scores + n.o)};
  // Kernels: z_V = Pᵀ·z_O; z_P = z_O·Vᵀ; z_S from P and z_P; z_Q = z_S·K; z_K = z_Sᵀ·Q.
  return {bytes * (5 * n.scores + 2 * n.o + n.v + n.k + n.q), bytes * (2 * n.scores + n.v + n.q + n.k)};
}

Bytes fused(const AttentionCell& c, bool backward, std::int64_t size, const Tile& tile) {
  const Elements n(c);
  const auto bytes = static_cast<double>(size), both = static_cast<double>(c.d + c.dv);
  if (!backward)
    return {bytes * (n.q + n.heads * keys_over_tiles(c, tile.queries) * both), bytes * n.o + stat * n.rows};
  const double rows = n.heads * queries_over_tiles(c, tile.keys), sums = stat * static_cast<double>(c.d);
  // Before the main kernel, u is computed from O and z_O, ξ is read, and the z_Q accumulator is cleared.
  // After it, the accumulator is rounded.
  return {bytes * 2 * n.o + stat * n.rows + bytes * (n.k + n.v) + rows * (bytes * both + 2 * stat + sums) +
              stat * n.q,
          2 * stat * n.rows + stat * n.q + rows * sums + bytes * (n.k + n.v + n.q)};
}

Bytes least(const AttentionCell& c, bool backward, std::int64_t size) {
  const Elements n(c);
  const auto bytes = static_cast<double>(size);
  const double in = n.q + n.k + n.v;
  if (!backward) return {bytes * in, bytes * n.o + stat * n.rows};
  return {bytes * (in + 2 * n.o) + stat * n.rows, bytes * in};
}

std::optional<Bytes> parse_counters(std::string_view csv) {
  Bytes sum;
  bool any = false;
  std::istringstream lines{std::string(csv)};
  for (std::string line; std::getline(lines, line);) {
    const bool read = line.find("\"dram__bytes_read.sum\"") != std::string::npos,
               written = line.find("\"dram__bytes_write.sum\"") != std::string::npos;
    if (!read && !written) continue;
    (read ? sum.read : sum.written) += last_number(line);
    any = true;
  }
  return any ? std::optional(sum) : std::nullopt;
}

std::optional<Bytes> counted(const AttentionCell& c, const char* once, const Settings& settings) {
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return {};
  // TG_STEPWISE launches kernels one by one, not as a CUDA graph. ncu counts only kernels of the child
  // process, and only in the run that --once profiles (attention_traffic_mode.cpp).
  const std::string command =
      "TG_STEPWISE=1 ncu --profile-from-start off --csv --print-units base "
      "--metrics dram__bytes_read.sum,dram__bytes_write.sum " +
      quoted(self) + " attention --backend " + settings.device.text() + " --dtype " + settings.dtype_name() +
      (settings.attention.by_token ? " --layout BLHd" : "") + " --kernels " +
      std::string(name_of(settings.attention.kernels)) + " --shape " + c.words() + " --once " + once +
      " 2>&1 </dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return {};
  std::string output;
  for (int character; (character = std::fgetc(pipe)) != EOF;) output += static_cast<char>(character);
  return ::pclose(pipe) == 0 ? parse_counters(output) : std::nullopt;
}

}  // namespace tg::bench
