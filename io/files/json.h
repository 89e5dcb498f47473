// Strict JSON (RFC 8259): a pull reader, and functions that write strings and numbers. The reader builds no
// tree, so a hostile file never needs more memory than its size.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tg::io {

// Reads one JSON document. Every call reads the next value. It throws FormatError, "<where>: … at byte N", if
// the value is not of the requested kind or the document is not valid JSON. Comments, trailing commas,
// duplicate keys, lone surrogates, control characters in strings, ill-formed UTF-8 and more than 64 nesting
// levels are invalid.
//
//   JsonReader json(text, "[load] config.json");
//   json.begin_object();
//   while (auto key = json.next_key()) { if (*key == "width") width = json.integer(); else json.skip(); }
//   json.end();
class JsonReader {
 public:
  // The kind of a value; `logical` is true or false.
  enum class Kind {
    object,   // {…}
    array,    // […]
    string,   // "…"
    number,   // an integer or a decimal number
    logical,  // true or false
    null      // null
  };
  // The largest nesting depth of objects and arrays.
  static constexpr std::size_t max_depth = 64;

  // `text` must outlive the reader. `where` begins error messages. Throws FormatError if the text is not
  // UTF-8.
  JsonReader(std::string_view text, std::string where);

  // Returns the kind of the next value without reading it.
  Kind peek();
  // Reads the start of an object. Then call next_key() until it returns nothing.
  void begin_object();
  // Returns the next key of the open object, or nothing at the end of the object. Read the key's value next.
  std::optional<std::string> next_key();
  // Reads a whole object. For each member, calls its function, which must read the value. Calls `other` for
  // keys that are not listed; without `other`, their values are skipped.
  void object(std::initializer_list<std::pair<std::string_view, std::function<void()>>> members,
              const std::function<void(const std::string& key)>& other = {});
  // Reads the start of an array. Then call next_item() until it returns false.
  void begin_array();
  // Returns true if the open array has another item, or false at the end of the array. Read the item next.
  bool next_item();
  // Reads a string and returns it decoded, as UTF-8.
  std::string string();
  // Reads a number, which must be finite in f64.
  double number();
  // Reads a number without fraction or exponent that fits into 64 bits.
  std::int64_t integer();
  // Reads true or false.
  bool boolean();
  // Reads null.
  void null();
  // Reads a value of any kind, checks that it is valid JSON, and discards it.
  void skip();
  // Reads a value of any kind and returns its text. The view points into the constructor's `text`.
  std::string_view raw();
  // Checks that no object or array is open and that only white space follows.
  void end();

  // Throws FormatError with `what` and the current byte offset.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Level {
    bool object;
    bool first = true;
    std::unordered_set<std::string> keys;
  };
  void space();
  void open(bool object);
  bool next(bool object);
  void literal(std::string_view word);
  std::string_view number_token();
  template <class T>
  T number_as(const char* expected);
  unsigned hex4();

  std::string_view text_;
  std::string where_;
  std::size_t at_ = 0;
  std::vector<Level> levels_;
};

// Returns s as a JSON string with quotes. Bytes that are not UTF-8 become U+FFFD, so the result is always
// valid JSON.
std::string json_string(std::string_view s);

// Returns s as a JSON string for a message: at most the first 80 bytes, then "…".
std::string json_excerpt(std::string_view s);

// Returns the shortest digits that read back as the same value. NaN and infinities become null, because JSON
// cannot represent them.
std::string json_number(double x);
// Returns the shortest digits that read back as the same f32 value.
std::string json_number(float x);

}  // namespace tg::io
