#include <tilegrad/core/report/graph_text.h>

#include <algorithm>
#include <map>

#include "core/base/messages.h"
#include "core/compile/lower.h"

namespace tg {

namespace {

std::string value_text(const Graph& graph, ValueId v) {
  const Value& value = graph.values()[v];
  return std::string(name_of(value.dtype)) + " " + value.layout.shape.text();
}

// The path without its last name: the layer that owns "weight".
std::string_view owner_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

// Escapes a string for Graphviz quotes.
std::string in_quotes(std::string_view text) {
  std::string s = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') s += '\\';
    if (c == '\n') {
      s += "\\n";
    } else {
      s += c;
    }
  }
  return s + "\"";
}

// A node of the drawing: its frame and its line in the DOT language.
struct Drawn {
  std::string layer, line;
};

Drawn drawn(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes()[id];
  std::string path = graph.name_of(node), label, look;
  if (node.op == &parameter_op) {
    const std::string& name = node.attrs.as<ParameterAttrs>().parameter.name();
    path = owner_of(name);
    label = name.substr(path.empty() ? 0 : path.size() + 1);
    look = ", fillcolor=\"#f3e3c3\"";
  } else if (node.op == &input_op) {
    label = node.attrs.as<InputAttrs>().name, path = "";
    look = ", fillcolor=\"#cfe8cf\"";
  } else if (node.op == &full_op) {
    label = formatted("%g", node.attrs.as<FullAttrs>().value);
    look = ", fillcolor=\"#eeeeee\"";
  } else {
    label = node.op->name;
  }
  const std::string layer = layer_of(path);
  std::string_view inside = std::string_view(path).substr(layer.size());
  if (inside.starts_with('.')) inside.remove_prefix(1);
  if (!inside.empty()) label = std::string(inside) + "/" + label;
  for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v) label += "\n" + value_text(graph, v);
  return {layer, "n" + std::to_string(id) + " [label=" + in_quotes(label) + look + "];\n"};
}

}  // namespace

std::string layer_of(std::string_view path) {
  while (path.ends_with('.')) path.remove_suffix(1);
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view name = path.substr(begin, end - begin);
    if (!name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos)
      return std::string(path.substr(0, end));
    begin = end + 1;
  }
  return std::string(path);
}

std::string graph_text(const Graph& graph, std::span<const ValueId> outputs) {
  const std::vector<bool> needed = needed_nodes(graph, outputs);
  std::string s;
  for (NodeId n = 0; n < graph.nodes().size(); ++n) {
    if (!needed[n]) continue;
    const Node& node = graph.nodes()[n];
    for (ValueId v = node.first_out; v < node.first_out + node.outs; ++v)
      s += (v > node.first_out ? ", %" : "%") + std::to_string(v) + " " + value_text(graph, v);
    s += " = " + node.op->name + "(";
    for (std::size_t i = 0; i < node.in.size(); ++i) s += (i ? ", %" : "%") + std::to_string(node.in[i]);
    s += ")";
    for (const std::string& part : {graph.name_of(node), node.attrs.text()})
      if (!part.empty()) s += "  " + part;
    s += "  " + at_line(node.where) + "\n";
  }
  return s;
}

std::string graphviz(const Graph& graph, std::span<const ValueId> outputs, std::string_view title) {
  const std::vector<bool> needed = needed_nodes(graph, outputs);
  std::map<std::string, std::string> frames;  // key: layer; value: its nodes
  std::string arrows;
  for (NodeId n = 0; n < graph.nodes().size(); ++n) {
    const Node& node = graph.nodes()[n];
    if (!needed[n] || node.op->view) continue;
    const Drawn d = drawn(graph, n);
    frames[d.layer] += "    " + d.line;
    for (ValueId v : node.in) {
      const NodeId maker = graph.values()[graph.values()[v].root].node;
      arrows += "  n" + std::to_string(maker) + " -> n" + std::to_string(n) + ";\n";
    }
  }
  std::string s = "digraph {\n  label=" + in_quotes(title) + ";\n  labelloc=t;\n  fontname=Helvetica;\n";
  s += "  node [shape=box, style=\"rounded,filled\", fillcolor=\"#dce6f4\", fontname=Helvetica, "
       "fontsize=11];\n";
  int count = 0;
  for (const auto& [layer, nodes] : frames) {
    if (layer.empty()) {
      s += "  {\n" + nodes + "  }\n";
      continue;
    }
    s += "  subgraph cluster" + std::to_string(count++) + " {\n    label=" + in_quotes(layer) +
         ";\n    color=\"#9099a8\";\n" + nodes + "  }\n";
  }
  return s + arrows + "}\n";
}

}  // namespace tg
