// Tests objects for use by one thread at a time. If a second thread uses such an object, an error is
// reported. Unbounded recursion must also end with an error.
#include <tilegrad/autograd/custom_op.h>
#include <tilegrad/nn/generation/engine.h>
#include <tilegrad/tilegrad.h>

#include <gtest/gtest.h>

#include <string>
#include <thread>

using namespace tg;

namespace {

// Runs f in a different thread. Returns the message of the Error that f throws, or "".
template <class F>
std::string error_in_thread(F&& f) {
  std::string message;
  std::thread([&] {
    try {
      f();
    } catch (const Error& e) {
      message = e.what();
    }
  }).join();
  return message;
}

// The only step of the program is a host function. It calls `inside` and then computes y = x.
struct HostProgram {
  explicit HostProgram(const std::string& name, std::function<void()> f) : inside(std::move(f)) {
    const CustomOp op = register_host_op(
        {.name = name, .forward = [this](std::span<const HostView> in, std::span<const HostView> out) {
           inside();
           for (std::int64_t i = 0; i < in[0].numel(); ++i) out[0].set(i, in[0].at(i));
         }});
    x = graph.input("x", {2});
    y = op(x + graph.param(w));
    program.emplace(compile(graph, {y}, {.assign = {{w, y}}}));
    program->feed({x, std::vector<float>{1, 2}});
  }
  std::function<void()> inside;
  Graph graph;
  Parameter w{"w", Array::of<float>({2}, {0, 0})};
  Tensor x, y;
  std::optional<Program> program;
};

TEST(OneUser, GraphThatTwoThreadsRecordIntoIsAnError) {
  Graph graph;
  std::string message;
  const Op& op =
      register_op({.name = "recorded_twice", .infer = [&](std::span<const Operand> in, const Attrs&) {
                     message = error_in_thread([&] { (void)full(graph, {2}, 1); });
                     return std::vector<OutSpec>{{in[0].dtype, in[0].layout}};
                   }});
  const Tensor x = graph.input("x", {2});
  (void)record(op, {x});
  EXPECT_NE(message.find("two threads record into one graph"), std::string::npos) << message;
  EXPECT_EQ(error_in_thread([&] { (void)full(graph, {2}, 1); }), "");  // sequential use is allowed
}

TEST(OneUser, HookThatAddsHooksBeforeARunCallsThemAll) {
  Graph graph;
  const Tensor x = graph.input("x", {2});
  Program program = compile(graph, {x + 1});
  program.feed({x, std::vector<float>{1, 2}});
  int calls = 0;
  int owners[101] = {};
  graph.before_runs(&owners[100], [&] {
    for (int i = 0; i < 100; ++i) graph.before_runs(&owners[i], [&calls] { ++calls; });
  });
  program.run();
  EXPECT_EQ(calls, 100);
}

TEST(OneUser, ProgramInARunCannotBeFedOrRunAgain) {
  std::string fed, ran, fed_inside;
  HostProgram p("one_user_host", [&] {
    fed = error_in_thread([&] { p.program->feed({p.x, std::vector<float>{3, 4}}); });
    ran = error_in_thread([&] { p.program->run(); });
    try {
      p.program->feed({p.x, std::vector<float>{3, 4}});
    } catch (const Error& e) {
      fed_inside = e.what();
    }
  });
  p.program->run();
  for (const std::string& message : {fed, ran, fed_inside})
    EXPECT_NE(message.find("this program is already running"), std::string::npos) << message;
  EXPECT_EQ(p.program->fetch(p.y).at(1), 2);
  p.program->feed({p.x, std::vector<float>{3, 4}});
}

TEST(OneUser, ParameterThatARunAssignsCannotBeUsedByAnotherThread) {
  std::string written, bytes, read_by_program, unrelated;
  HostProgram p("one_user_parameter", [&] {
    written = error_in_thread([&] { p.w.write(Array::of<float>({2}, {5, 5})); });
    bytes = error_in_thread([&] { p.w.write_bytes(0, {}); });
    p.w.write_bytes(0, {});  // the run's own thread may write
    Graph other;
    const Tensor twice = other.param(p.w) * 2;
    Program reader = compile(other, {twice});
    read_by_program = error_in_thread([&] { reader.run(); });
    Program without = compile(other, {full(other, {2}, 1) + 1});
    unrelated = error_in_thread([&] { without.run(); });
  });
  p.program->run();
  EXPECT_NE(written.find("parameter w is in use"), std::string::npos) << written;
  EXPECT_NE(bytes.find("parameter w is in use"), std::string::npos) << bytes;
  EXPECT_NE(read_by_program.find("parameter w is in use"), std::string::npos) << read_by_program;
  EXPECT_EQ(unrelated, "");
  p.w.write(Array::of<float>({2}, {5, 5}));
}

TEST(OneUser, ParameterThatARunReadsCannotBeAssignedByAnotherThread) {
  std::string assigned, read;
  Parameter w("w", Array::of<float>({2}, {3, 4}));
  Graph other;
  const Tensor held = other.param(w), twice = held * 2;
  Program writer = compile(other, {}, {.assign = {{w, twice}}}), reader = compile(other, {twice});
  const CustomOp op = register_host_op({.name = "one_user_reader", .forward = [&](auto in, auto out) {
                                          assigned = error_in_thread([&] { writer.run(); });
                                          read = error_in_thread([&] { reader.run(); });
                                          for (std::int64_t i = 0; i < in[0].numel(); ++i)
                                            out[0].set(i, in[0].at(i));
                                        }});
  Graph graph;
  const Tensor y = op(graph.param(w) * 1);
  Program program = compile(graph, {y});
  program.run();
  EXPECT_EQ(
      assigned,
      "[run] parameter w is in use by a program that another thread runs, and one of the two assigns it");
  EXPECT_EQ(read, "");
  EXPECT_EQ(program.fetch(y).at(1), 4);
  writer.run();
  EXPECT_EQ(w.read().at(1), 8);
}

TEST(OneUser, OpsRegisteredByManyThreadsAreAllFound) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        const auto copy = [](std::span<const HostView> in, std::span<const HostView> out) {
          for (std::int64_t k = 0; k < in[0].numel(); ++k) out[0].set(k, in[0].at(k));
        };
        (void)register_host_op({.name = "many_" + std::to_string(t) + "_" + std::to_string(i),
                                .forward = copy,
                                .backward = [](const HostGradient&) {}});
      }
    });
  for (std::thread& t : threads) t.join();
  for (int t = 0; t < 8; ++t)
    for (int i = 0; i < 50; ++i)
      EXPECT_NE(find_op("many_" + std::to_string(t) + "_" + std::to_string(i)), nullptr);
}

TEST(Nested, HostFunctionsThatRunProgramsWithoutEndAreAnError) {
  std::function<void(int)> descend = [&](int level) {
    HostProgram p("nested_" + std::to_string(level), [&descend, level] {
      if (level < 200) descend(level + 1);
    });
    p.program->run();
  };
  try {
    descend(0);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("more than 32 calls contain one another"), std::string::npos)
        << e.what();
  }
}

TEST(Nested, CustomOpThatCallsItselfIsAnError) {
  Graph graph;
  const Tensor x = graph.input("x", {2});
  std::optional<CustomOp> op;
  op = custom_op("endless", {.forward = [&](const std::vector<Tensor>& in) -> std::vector<Tensor> {
                               return {(*op)(in[0])};
                             },
                             .backward = [](const std::vector<Tensor>&, const std::vector<Tensor>&,
                                            const std::vector<Tensor>& z) { return z; }});
  try {
    (void)(*op)(x);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("more than 32 calls contain one another"), std::string::npos);
    EXPECT_LT(std::string(e.what()).size(), 2000u);
  }
}

}  // namespace
