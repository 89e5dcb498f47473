// Tests tables of options. Each option is set by itself, in pairs, and in two calls of one graph. fields_of()
// lists the fields of an options struct in a structured binding. If a field is added to the struct, this
// binding fails to compile. When the binding is updated, expect_each_field_is_set() fails until the table has
// a row for the field.
#pragma once

#include <gtest/gtest.h>

#include <concepts>
#include <tuple>

#include <tilegrad/core/graph/tensor.h>

namespace tg::testing {

// Returns whether a field differs from its default.
template <class T>
bool is_set(const T& field, const T& initial) {
  if constexpr (std::same_as<T, Tensor>)
    return field.defined();
  else if constexpr (std::equality_comparable<T>)
    return !(field == initial);
  else
    return static_cast<bool>(field);  // a function, or an optional struct
}

// `set[i]` counts the rows that set field i.
template <class... T>
void count_set(std::vector<int>& set, const std::tuple<T...>& fields, const std::tuple<T...>& initial) {
  set.resize(sizeof...(T));
  const auto count = [&]<std::size_t... i>(std::index_sequence<i...>) {
    ((set[i] += is_set(std::get<i>(fields), std::get<i>(initial))), ...);
  };
  count(std::index_sequence_for<T...>());
}

// Expects that each field of the options is set by a row. `options(i)` has only the options of row i.
template <class F>
void expect_each_field_is_set(std::size_t rows, F options) {
  std::vector<int> set;
  const decltype(options(0)) initial{};
  for (std::size_t i = 0; i < rows; ++i) {
    const auto o = options(i);
    count_set(set, fields_of(o), fields_of(initial));
  }
  for (std::size_t field = 0; field < set.size(); ++field)
    EXPECT_GT(set[field], 0) << "no row of the table sets field " << field << " of the options";
}

// Calls f(i, j) for each pair of rows with i ≤ j. If i = j, the row is tested by itself.
template <class F>
void each_pair(std::size_t rows, F f) {
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = i; j < rows; ++j) f(i, j);
}

}  // namespace tg::testing
