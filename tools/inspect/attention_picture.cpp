// Attention maps as a picture.
#include "tools/inspect/attention_views.h"

#include <cstdio>

namespace tg {

std::string visible_token(const std::string& token) {
  std::string s;
  for (const char c : token) {
    if (c == ' ') {
      s += "·";
    } else if (c == '\n') {
      s += "\\n";
    } else if (static_cast<unsigned char>(c) < 32 || c == 127) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(c));
      s += code;
    } else {
      s += c;
    }
  }
  return s;
}

plot::HeatMaps attention_picture(const std::vector<nn::AttentionMap>& maps,
                                 const std::vector<std::string>& tokens, const std::string& title) {
  plot::HeatMaps h{.title = title,
                   .x_label = "to the right: tokens that are attended to",
                   .y_label = "downwards: tokens that attend",
                   .scale = "attention weight",
                   .rows = std::ssize(tokens),
                   .columns = std::ssize(tokens)};
  for (const std::string& token : tokens) h.row_names.push_back(visible_token(token));
  h.column_names = h.row_names;
  for (std::size_t layer = 0; layer < maps.size(); ++layer) {
    const std::vector<float> all = maps[layer].weights.values<float>();
    h.across = maps[layer].weights.shape()[0];
    const std::size_t size = tokens.size() * tokens.size();
    for (std::size_t head = 0; head * size < all.size(); ++head)
      h.maps.push_back({"layer " + std::to_string(layer) + ", head " + std::to_string(head),
                        {all.begin() + static_cast<std::ptrdiff_t>(head * size),
                         all.begin() + static_cast<std::ptrdiff_t>((head + 1) * size)}});
  }
  return h;
}

}  // namespace tg
