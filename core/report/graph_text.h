// Prints a graph as a list of nodes or as a Graphviz drawing. For a program p, call graph_text(p.graph(),
// p.outputs()).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <tilegrad/core/graph/graph.h>

namespace tg {

// Lists the nodes that the outputs depend on, one per line: values with dtype and shape, op, inputs, path,
// attributes and source line, for example `%7 f32 [12, 64, 512] = gelu(%6)  transformer.h.0.mlp
// (train.cpp:41)`.
std::string graph_text(const Graph& graph, std::span<const ValueId> outputs);

// Prints the same nodes in the DOT language (`dot -Tsvg`), with a frame around each layer. Views are omitted,
// because they compute nothing. If a node reads a view, an arrow points to the node from the value that owns
// the memory.
std::string graphviz(const Graph& graph, std::span<const ValueId> outputs, std::string_view title);

// The layer of a path such as "transformer.h.0.attn.c_attn": the path up to its first number
// ("transformer.h.0"), or the whole path if it has no number.
std::string layer_of(std::string_view path);

}  // namespace tg
