// Which layers have windows where a GGUF file does not say so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tg::io {

// A list's number of a layer: it begins again where it ends; `usual` if it is empty.
inline std::int64_t of_gguf_layer(const std::vector<std::int64_t>& list, std::int64_t layer,
                                  std::int64_t usual) {
  return list.empty() ? usual : list[static_cast<std::size_t>(layer) % list.size()];
}

// llama.cpp has them in all but every n-th layer; 0: nowhere.
inline std::int64_t usual_gguf_pattern(const std::string& architecture) {
  return architecture == "gemma2" ? 2 : architecture == "gemma3" ? 6 : 0;
}

}  // namespace tg::io
