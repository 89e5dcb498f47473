// Tests the command-line parser: the accepted forms of arguments, and errors. An error must be one clear
// line, with exit code 2.
#include "tools/args.h"

#include <gtest/gtest.h>

namespace tg {
namespace {

struct Command {
  std::int64_t steps = 2000;
  double lr = 1e-3;
  std::string text, mode = "train";
  std::vector<std::string> ops{"all"};
  bool quiet = false;
  std::string out, err;  // printed output

  std::optional<int> run(std::vector<const char*> words) {
    Args args("tool", "Does a thing.");
    args.positional("mode", "what to do", mode, {.choices = {"train", "check"}});
    args.option("text", "FILE", "text to learn", text, {.required = true});
    args.option("steps", "N", "optimizer steps", steps, {.min = 1, .max = 1e9});
    args.option("lr", "RATE", "learning rate", lr, {.min = 0});
    args.option("op", "NAME", "op to check, may be repeated", ops);
    args.flag("quiet", "no progress line", quiet);
    args.example("tool --text a.txt", "a first run");
    words.insert(words.begin(), "tool");
    std::FILE* o = std::tmpfile();
    std::FILE* e = std::tmpfile();
    const auto code = args.parse(static_cast<int>(words.size()), words.data(), o, e);
    out = content(o), err = content(e);
    return code;
  }
  static std::string content(std::FILE* f) {
    std::string s(static_cast<std::size_t>(std::ftell(f)), '\0');
    std::rewind(f);
    s.resize(std::fread(s.data(), 1, s.size(), f));
    std::fclose(f);
    return s;
  }
};

TEST(Args, EmptyValuesAreErrorsExceptForFreeStrings) {
  for (const auto& words : {std::vector<const char*>{"--text", ""},
                            {"--text="},
                            {"--text=a", "--op="},
                            {"--text=a", "--steps", ""}}) {
    Command c;
    EXPECT_EQ(c.run(words), 2);
    EXPECT_NE(c.err.find("got '', expected "), std::string::npos) << c.err;
  }
  std::string prompt = "none";
  Args args("tool", "Does a thing.");
  args.option("prompt", "TEXT", "text to continue", prompt);
  const char* words[] = {"tool", "--prompt", ""};
  EXPECT_EQ(args.parse(3, words), std::nullopt);
  EXPECT_EQ(prompt, "");
}

TEST(Args, AcceptsBothValueSyntaxesAndKeepsDefaults) {
  Command c;
  ASSERT_EQ(c.run({"check", "--text", "a b.txt", "--steps=12", "--lr", "-0", "--quiet"}), std::nullopt)
      << c.err;
  EXPECT_EQ(c.mode, "check");
  EXPECT_EQ(c.text, "a b.txt");
  EXPECT_EQ(c.steps, 12);
  EXPECT_EQ(c.lr, 0.0);
  EXPECT_TRUE(c.quiet);
  EXPECT_EQ(c.ops, std::vector<std::string>{"all"});
  EXPECT_EQ(c.out + c.err, "");
  Command d;
  ASSERT_EQ(d.run({"--text=x=y", "--lr=2.5e-4", "--op", "relu", "--op=exp"}), std::nullopt) << d.err;
  EXPECT_EQ(d.text, "x=y");
  EXPECT_EQ(d.lr, 2.5e-4);
  EXPECT_EQ(d.steps, 2000);
  EXPECT_EQ(d.ops, (std::vector<std::string>{"relu", "exp"}));
}

TEST(Args, EveryErrorIsOneLineAndExitCodeTwo) {
  const std::string see = " (see tool --help)\n";
  const std::pair<std::vector<const char*>, std::string> cases[] = {
      {{"--text", "a", "--stpes", "3"}, "unknown option --stpes, did you mean --steps?"},
      {{"--text", "a", "--step=3"}, "unknown option --step, did you mean --steps?"},
      {{"--text", "a", "-steps", "3"}, "unknown option -steps, did you mean --steps?"},
      {{"--text", "a", "--zebra"}, "unknown option --zebra"},
      {{"--text", "a", "--"}, "unknown option --"},
      {{"--text"}, "--text needs a value: --text FILE"},
      {{"--text", "--quiet"}, "--text needs a value: --text FILE"},
      {{}, "missing --text FILE"},
      {{"--text", "a", "--steps", "ten"}, "--steps got 'ten', expected a whole number"},
      {{"--text", "a", "--steps", "1.5"}, "--steps got '1.5', expected a whole number"},
      {{"--text", "a", "--steps", ""}, "--steps got '', expected a whole number"},
      {{"--text", "a", "--steps", "12x"}, "--steps got '12x', expected a whole number"},
      {{"--text", "a", "--steps", "0"}, "--steps got '0', expected a whole number from 1 to 1000000000"},
      {{"--text", "a", "--steps", "99999999999999999999"},
       "--steps got '99999999999999999999', expected a whole number in range"},
      {{"--text", "a", "--lr", "-1"}, "--lr got '-1', expected a number of at least 0"},
      {{"--text", "a", "--lr", "nan"}, "--lr got 'nan', expected a finite number"},
      {{"--text", "a", "--lr", "inf"}, "--lr got 'inf', expected a finite number"},
      {{"--text", "a", "--lr", "1e-3x"}, "--lr got '1e-3x', expected a number"},
      {{"--text", "a", "--quiet=yes"}, "--quiet does not accept a value"},
      {{"--text", "a", "--text", "b"}, "--text is given twice"},
      {{"--text", "a", "dance"}, "MODE got 'dance', expected one of train, check"},
      {{"--text", "a", "check", "more"}, "unexpected argument 'more'"},
  };
  for (const auto& [words, message] : cases) {
    Command c;
    EXPECT_EQ(c.run(words), 2) << message;
    EXPECT_EQ(c.err, "tool: " + message + see);
    EXPECT_EQ(c.out, "");
  }
}

TEST(Args, InvalidValueKeepsTheDestination) {
  Command c;
  EXPECT_EQ(c.run({"--text", "a", "--steps", "0"}), 2);
  EXPECT_EQ(c.steps, 2000);
}

TEST(Args, HelpPrintsEveryOptionItsDefaultAndTheExamples) {
  for (const char* word : {"--help", "-h"}) {
    Command c;
    EXPECT_EQ(c.run({"--steps", "bad", word}), 0);
    EXPECT_EQ(c.err, "");
    EXPECT_EQ(c.out,
              "tool: Does a thing.\n\n"
              "usage: tool [MODE] --text FILE [options]\n\n"
              "  MODE         what to do: train, check [train]\n"
              "  --text FILE  text to learn (required)\n"
              "  --steps N    optimizer steps [2000]\n"
              "  --lr RATE    learning rate [0.001]\n"
              "  --op NAME    op to check, may be repeated [all]\n"
              "  --quiet      no progress line\n"
              "  --help       print this page\n"
              "  --version    print the version of the library\n\n"
              "examples:\n"
              "  tool --text a.txt\n"
              "      a first run\n\n"
              "environment:\n"
              "  TG_LOG=1 to 4  log compiled programs to standard error: 1 runs, 2 steps, 3 memory plan, 4 "
              "kernels\n"
              "  TG_THREADS=N   number of threads on the CPU\n");
  }
}

TEST(Args, ValuesRoundTripThroughStringsExactly) {
  Args args("tool", "Does a thing.");
  std::int64_t n = -7;
  double x = 0.1 + 0.2, y = 1e-300;
  std::string word = "a b";
  bool flag = true;
  args.option("n", "N", "", n, {.min = -10});
  args.option("x", "X", "", x);
  args.option("y", "Y", "", y);
  args.option("word", "W", "", word);
  args.flag("flag", "", flag);
  EXPECT_EQ(args.names(), (std::vector<std::string>{"n", "x", "y", "word", "flag"}));
  std::vector<std::string> values;
  for (const std::string& name : args.names()) values.push_back(args.value(name));
  n = 0, x = y = 0, word = "", flag = false;
  for (std::size_t i = 0; i < values.size(); ++i) args.set(args.names()[i], values[i]);
  EXPECT_EQ(n, -7);
  EXPECT_EQ(x, 0.1 + 0.2);
  EXPECT_EQ(y, 1e-300);
  EXPECT_EQ(word, "a b");
  EXPECT_TRUE(flag);
  EXPECT_FALSE(args.given("n"));
  const auto mistake = [&](const char* name, const char* value) -> std::string {
    try {
      args.set(name, value);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(mistake("n", "-11"), "--n got '-11', expected a whole number of at least -10");
  EXPECT_EQ(mistake("m", "1"), "unknown option --m");
}

TEST(Args, ErrorsAreOneLineWithoutControlCharacters) {
  EXPECT_EQ(printable("gpt\n\x1b[2J\x7f\xc2\x9b für жук"), "gpt\\n\\x1b[2J\\x7f\xc2\\x9b für жук");
  std::string word;
  Args args("tool", "about");
  args.option("model", "NAME", "", word, {.choices = {"gpt"}});
  const char* argv[] = {"tool", "--model", "gpt\n"};
  std::FILE* err = std::tmpfile();
  EXPECT_EQ(args.parse(3, argv, stdout, err), 2);
  std::rewind(err);
  char line[200] = {};
  ASSERT_NE(std::fgets(line, sizeof line, err), nullptr);
  EXPECT_STREQ(line, "tool: --model got 'gpt\\n', expected one of gpt (see tool --help)\n");
  EXPECT_EQ(std::fgetc(err), EOF);
  std::fclose(err);
}

}  // namespace
}  // namespace tg
