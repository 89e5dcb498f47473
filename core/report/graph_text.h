// A graph as text, and as a picture that Graphviz draws. For a program: graph_text(p.graph(), p.outputs()).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <tilegrad/core/graph/graph.h>

namespace tg {

// The nodes that the outputs depend on, one per line: values with dtype and shape, op, inputs, path,
// attributes, source line.
//   %7 f32 [12, 64, 512] = gelu(%6)  transformer.h.0.mlp  (train.cpp:41)
std::string graph_text(const Graph& graph, std::span<const ValueId> outputs);

// The same nodes in Graphviz's language (`dot -Tsvg`), each layer in a frame of its own. Views, which compute
// nothing, are left out: an arrow leads from the value whose memory is read to the node that reads it.
std::string graphviz(const Graph& graph, std::span<const ValueId> outputs, std::string_view title);

// The layer of a path ("transformer.h.0.attn.c_attn"): the path up to its first number ("transformer.h.0"),
// or all of it if it has none.
std::string layer_of(std::string_view path);

}  // namespace tg
