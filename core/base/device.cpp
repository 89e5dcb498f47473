#include <tilegrad/core/base/device.h>

#include <charconv>

#include <tilegrad/core/base/error.h>

namespace tg {

std::string Device::text() const {
  if (kind == cpu_kind) return "cpu";
  return ordinal == 0 ? "cuda" : "cuda:" + std::to_string(ordinal);
}

Device Device::parse(const std::string& text) {
  if (text == "cpu") return cpu();
  if (text == "cuda") return cuda();
  if (text.starts_with("cuda:")) {
    int ordinal = -1;
    const char *first = text.data() + 5, *last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, ordinal);
    if (error == std::errc() && end == last && ordinal >= 0) return cuda(ordinal);
  }
  throw DeviceError("[device] expected cpu, cuda or cuda:N, got '" + text + "'");
}

}  // namespace tg
