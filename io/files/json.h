// Strict JSON (RFC 8259): a pull reader without a tree, so that a hostile file needs no more memory than its
// size, and the two functions that a writer needs.
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

// Reads one JSON text. Every call reads the next value. It throws FormatError, "<where>: … at byte N", if the
// value is not of the requested kind, or if the text is not JSON: no comments, no trailing commas, no
// duplicate keys, no lone surrogates, no control characters in strings, well-formed UTF-8, at most 64 levels
// deep.
//
//   JsonReader json(text, "[load] config.json");
//   json.begin_object();
//   while (auto key = json.next_key()) { if (*key == "width") width = json.integer(); else json.skip(); }
//   json.end();
class JsonReader {
 public:
  enum class Kind { object, array, string, number, logical, null };
  static constexpr std::size_t max_depth = 64;

  JsonReader(std::string_view text, std::string where);  // text must outlive the reader

  Kind peek();                            // kind of the next value, without reading it
  void begin_object();                    //
  std::optional<std::string> next_key();  // nothing if the object ends; otherwise its value must be read next
  // Reads an object: calls the function of each member, which reads its value. Other members are skipped, or
  // read by `other`.
  void object(std::initializer_list<std::pair<std::string_view, std::function<void()>>> members,
              const std::function<void(const std::string& key)>& other = {});
  void begin_array();      //
  bool next_item();        // false if the array ends; otherwise the item must be read next
  std::string string();    //
  double number();         // finite; what f64 cannot hold is an error
  std::int64_t integer();  // written without fraction or exponent, within 64 bits
  bool boolean();          //
  void null();             //
  void skip();             // any one value, checked as strictly as the rest
  std::string_view raw();  // the same: its text
  void end();              // nothing is open, and only white space may follow

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

// s as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD: the result is always valid
// JSON.
std::string json_string(std::string_view s);

// The same for a message: at most the first 80 bytes of s, then "…".
std::string json_excerpt(std::string_view s);

// The shortest digits that read back as the same value; NaN and infinities, which JSON lacks, become null.
std::string json_number(double x);
std::string json_number(float x);

}  // namespace tg::io
