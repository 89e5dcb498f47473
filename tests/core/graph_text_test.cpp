// Tests the descriptions of a graph as text and in Graphviz's language. Each needed node occurs once, with
// its shape and layer.
#include <tilegrad/core/report/graph_text.h>

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include <tilegrad/tilegrad.h>

namespace tg {
namespace {

TEST(LayerOf, IsThePathUpToItsFirstNumber) {
  EXPECT_EQ(layer_of("transformer.h.0.attn.c_attn"), "transformer.h.0");
  EXPECT_EQ(layer_of("optimizer.grad.model.layers.12.mlp"), "optimizer.grad.model.layers.12");
  EXPECT_EQ(layer_of("transformer.wte"), "transformer.wte");
  EXPECT_EQ(layer_of("a.c4.b"), "a.c4.b") << "a number among letters is none";
  EXPECT_EQ(layer_of("optimizer.grad."), "optimizer.grad");
  EXPECT_EQ(layer_of("3.x.4"), "3");
  EXPECT_EQ(layer_of(""), "");
}

struct Small {
  Graph g;
  Parameter w{"net.0.fc.weight", Array::of<float>({3, 4}, std::vector<float>(12, 1))};
  Tensor x = g.input("the \"x\"", {2, 3}), y, unused;
  Small() {
    const Scope scope("net.0.fc");
    unused = exp(x);
    y = transpose(matmul(x, g.param(w)) * 2, 0, 1);
  }
  std::vector<ValueId> outputs() const { return {y.id()}; }
};

TEST(GraphText, EachNeededNodeHasALineWithShapesInputsAndPath) {
  Small s;
  const std::string text = graph_text(s.g, s.outputs());
  const std::string lines[] = {"%0 f32 [2, 3] = input()  name=\"the \"x\"\"",
                               "%2 f32 [3, 4] = parameter()  net.0.fc",
                               "%3 f32 [2, 4] = matmul(%0, %2)  net.0.fc  ", "(graph_text_test.cpp:"};
  for (const std::string& line : lines)
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
  EXPECT_EQ(text.find("exp("), std::string::npos) << text;
  EXPECT_EQ(graph_text(s.g, std::vector<ValueId>{s.unused.id()}).find("matmul"), std::string::npos);
  EXPECT_EQ(graph_text(s.g, {}), "");
}

// Checks the output of graphviz(). Every line must have one of a few forms. Braces must be balanced, and
// arrows must connect nodes.
void expect_graphviz(const std::string& dot) {
  const std::string quoted = R"("([^"\\]|\\["\\n])*")";
  const std::regex open(R"((digraph|  subgraph cluster\d+|  ) ?\{)"), close(R"( *\})"),
      node("    (n\\d+) \\[label=" + quoted + "(, fillcolor=" + quoted + ")?\\];"),
      arrow(R"(  (n\d+) -> (n\d+);)"), setting("  *(label|labelloc|fontname|color)=(" + quoted + "|\\w+);"),
      look(R"(  node \[.*\];)");
  std::set<std::string> nodes;
  int depth = 0;
  std::istringstream lines(dot);
  for (std::string line; std::getline(lines, line);) {
    std::smatch m;
    if (std::regex_match(line, m, node)) {
      EXPECT_TRUE(nodes.insert(m[1]).second) << "twice: " << line;
    } else if (std::regex_match(line, m, arrow)) {
      EXPECT_TRUE(nodes.contains(m[1]) && nodes.contains(m[2])) << line;
      EXPECT_EQ(depth, 1);
    } else if (std::regex_match(line, open)) {
      ++depth;
    } else if (std::regex_match(line, close)) {
      --depth;
    } else {
      EXPECT_TRUE(std::regex_match(line, setting) || std::regex_match(line, look)) << line;
    }
  }
  EXPECT_EQ(depth, 0);
}

TEST(Graphviz, DrawsComputationsInFramesByLayer) {
  Small s;
  const std::string dot = graphviz(s.g, s.outputs(), "a \\ \"title\"\nof two lines");
  expect_graphviz(dot);
  EXPECT_NE(dot.find(R"(label="a \\ \"title\"\nof two lines")"), std::string::npos);
  EXPECT_NE(dot.find(R"(label="the \"x\"\nf32 [2, 3]")"), std::string::npos);
  EXPECT_NE(dot.find(R"(label="fc/weight\nf32 [3, 4]")"), std::string::npos);
  EXPECT_NE(dot.find(R"(label="fc/mul\nf32 [2, 4]")"), std::string::npos);
  EXPECT_NE(dot.find("label=\"net.0\""), std::string::npos);
  EXPECT_EQ(dot.find("permute"), std::string::npos) << "views are left out";
  EXPECT_EQ(dot.find("/exp"), std::string::npos);
}

TEST(Graphviz, AcceptsAGradientAndTheEmptyGraph) {
  Graph g;
  const Tensor x = g.input("x", {4, 6});
  const Tensor z = gradients(sum(softmax(transpose(x, 0, 1), -1) * 3), {x})[0];
  const std::string dot = graphviz(g, std::vector<ValueId>{z.id()}, "gradient");
  expect_graphviz(dot);
  EXPECT_NE(dot.find("softmax_backward"), std::string::npos);
  expect_graphviz(graphviz(g, {}, ""));
}

}  // namespace
}  // namespace tg
