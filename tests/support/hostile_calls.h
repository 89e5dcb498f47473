// Defines wrong calls of a program, and a check of their errors.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/op_testing.h"

namespace tg::testing {

struct MistakenCall {
  const char* name;
  std::function<void()> call;
  std::string part = {};  // a part of the message
};

// Expects that each call throws an E. Its message must contain the part that is given with the call.
template <class E = Error>
void expect_errors(const std::vector<MistakenCall>& calls, std::initializer_list<std::string> parts = {}) {
  for (const MistakenCall& c : calls) {
    SCOPED_TRACE(c.name);
    expect_error<E>(c.call, parts);
    expect_error<E>(c.call, {c.part});
  }
}

struct Hostile : ::testing::Test {
  Graph g;
  Tensor x = g.input("x", {5}), one = g.input("one", {1}), i = g.input("i", {3}, i32),
         many = expand(one, {max_elements});
};

}  // namespace tg::testing
