// Tests that messages have one line and a limited length, and that names have one line.
#include "core/base/messages.h"

#include <gtest/gtest.h>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/ops/ops.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

TEST(Printable, ControlCharactersBecomeEscapes) {
  EXPECT_EQ(printable(std::string_view("a\nb\0c\x1b[1m\x7f", 9)), "a\\nb\\x00c\\x1b[1m");
  EXPECT_EQ(printable("für\xc2\x85…"), "für\xc2\\x85…");
  EXPECT_TRUE(has_control_characters("\r"));
  EXPECT_TRUE(has_control_characters(std::string_view("a\0", 2)));
  EXPECT_FALSE(has_control_characters("transformer.h.0 é 模"));
}

TEST(Printable, MiddleIsOmittedBetweenCharacters) {
  EXPECT_EQ(middle_left_out("0123456789", 10), "0123456789");
  EXPECT_EQ(middle_left_out("0123456789", 8), "012345 … 89");
  for (std::size_t most = 8; most < 40; ++most) {
    const std::string left = middle_left_out("éééééééééééééééééééé", most);
    EXPECT_EQ(left.find("\xa9\xa9"), std::string::npos);
    EXPECT_NE(left.front(), '\xa9');
    EXPECT_EQ(left.back(), '\xa9');
  }
}

TEST(Error, MessageIsOneLineOfLimitedLength) {
  const std::string big(3'000'000, 'x');
  const std::string what =
      error_of([&] { throw FormatError("[load] m.json: got \n" + big + ", expected 1"); });
  EXPECT_LT(what.size(), 4200u);
  EXPECT_TRUE(what.starts_with("[load] m.json: got \\nxxx"));
  EXPECT_TRUE(what.ends_with("x, expected 1"));
  EXPECT_EQ(std::string(Error(std::string("a\0b", 3)).what()), "a\\x00b");
  EXPECT_EQ(std::string(ShapeError(std::string(5000, '\n')).what()).find('\n'), std::string::npos);
}

TEST(Names, ControlCharactersAreRefused) {
  for (const std::string& name : {std::string("a\nb"), std::string("a\0b", 3), std::string("\x1b[2J")}) {
    EXPECT_NE(error_of([&] { Parameter(name, Array({2}, f32)); }).find("control characters"),
              std::string::npos);
    EXPECT_NE(error_of([&] { Parameter(name, Shape{2}, f32, Device::cpu()); }).find("control characters"),
              std::string::npos);
    EXPECT_NE(error_of([&] { Scope scope(name); }).find("control characters"), std::string::npos);
    EXPECT_NE(error_of([&] { Graph().input(name, {2}, f32); }).find("control characters"), std::string::npos);
    EXPECT_NE(error_of([&] { Parameter("w", Array({2}, f32)).add_setting(name, "1"); }).find("control"),
              std::string::npos);
    Op op;
    op.name = name;
    EXPECT_NE(error_of([&] { register_op(op); }).find("control characters"), std::string::npos);
  }
  EXPECT_EQ(error_of([&] { Parameter("größe 模", Array({2}, f32)); }), "no error");
}

}  // namespace
