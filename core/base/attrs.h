// An op's attributes are a plain struct, held by value. The struct lists its fields once, and the list is
// used for printing and hashing:
//
//     struct ReduceAttrs {
//       Axes axes;
//       bool keepdim;
//       void fields(auto&& field) const { field("axes", axes), field("keepdim", keepdim, false); }
//     };
//
// The optional third argument is the field's default. Error messages omit a field that has its default value.
// A field that passes its own value as the default therefore never appears in error messages.
#pragma once

#include <charconv>
#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/base/dims.h>
#include <tilegrad/core/base/dtype.h>

namespace tg {

namespace detail {
// The value of a field for messages.
inline std::string attr_text(const Dims& v) {
  return v.text();
}
inline std::string attr_text(DType v) {
  return std::string(name_of(v));
}
inline std::string attr_text(bool v) {
  return v ? "true" : "false";
}
inline std::string attr_text(const std::string& v) {
  return '"' + v + '"';
}
// Returns v with the fewest digits that still convert back to v.
inline std::string attr_text(double v) {
  char s[32];
  return {s, std::to_chars(s, s + sizeof s, v).ptr};
}
inline std::string attr_text(std::integral auto v) {
  return std::to_string(v);
}
inline std::string attr_text(const std::vector<double>& v) {
  std::string s;
  for (double x : v) s += (s.empty() ? "" : ", ") + attr_text(x);
  return "[" + s + "]";
}

// The name of a type. It replaces typeid when RTTI is disabled. Two shared objects have different copies of
// the name, so the characters are compared. Types of unnamed namespaces are equal only if their names are the
// same object.
template <class T>
struct TypeName {
  static constexpr const char* get() { return __PRETTY_FUNCTION__; }
};
inline bool is_same_type(const char* a, const char* b) {
  return a == b ||
         (std::string_view(a) == b && std::string_view(a).find("nonymous") == std::string_view::npos);
}
}  // namespace detail

// The attributes of an op that has none.
struct NoAttrs {
  // Lists no fields.
  void fields(auto&&) const {}
};

// A value of any attribute struct. Copies share it.
class Attrs {
 public:
  // No attributes.
  Attrs() = default;
  // Holds a struct of attributes.
  template <class T>
  requires(!std::is_same_v<T, Attrs> && !std::is_same_v<T, NoAttrs>) Attrs(T value)
      : held_(std::make_shared<const Held<T>>(std::move(value))) {}
  // No attributes.
  Attrs(NoAttrs) {}

  // The struct. Throws Error if the attributes have a different type. The function is always inlined, because
  // kernels for several instruction sets must not share one copy of it.
  template <class T>
  [[gnu::always_inline]] const T& as() const {
    constexpr const char* type = detail::TypeName<T>::get();
    if (!held_ || (held_->type != type && !held_->is(type))) refuse();
    return static_cast<const Held<T>*>(held_.get())->value;
  }
  // All fields, such as "axes=[1], keepdim=false"; empty without fields. If two strings are equal, the
  // attributes are equal.
  std::string text() const { return held_ ? held_->text(true) : std::string(); }
  // The fields that differ from their defaults: "axes=[1]".
  std::string non_default_text() const { return held_ ? held_->text(false) : std::string(); }

 private:
  [[noreturn]] static void refuse();
  struct Base {
    explicit Base(const char* t) : type(t) {}
    virtual ~Base() = default;
    virtual std::string text(bool defaults) const = 0;
    virtual bool is(const char* other) const = 0;
    const char* type;
  };
  template <class T>
  struct Held final : Base {
    explicit Held(T v) : Base(detail::TypeName<T>::get()), value(std::move(v)) {}
    bool is(const char* other) const override { return detail::is_same_type(Base::type, other); }
    std::string text(bool defaults) const override {
      std::string s;
      value.fields([&](const char* name, const auto& v, const auto&... normal) {
        if (!defaults && ((v == normal) || ...)) return;
        s += (s.empty() ? "" : ", ") + std::string(name) + "=" + detail::attr_text(v);
      });
      return s;
    }
    T value;
  };
  std::shared_ptr<const Base> held_;
};

}  // namespace tg
