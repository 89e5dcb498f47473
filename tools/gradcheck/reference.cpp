// Generates the reference of ops (docs/ops.md) and the list of their samples (docs/notes/op-samples.md).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <tilegrad/ops/ops.h>
#include "tools/gradcheck/select.h"

namespace tg::gradcheck {

namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

constexpr DType all_dtypes[] = {f64, f32, bf16, f16, i64, i32, u8, boolean};

// The first node of an op when its sample is called with inputs of one dtype.
struct SampleNode {
  bool refused = false;                 // the call threw an error
  std::vector<Operand> operands, outs;  // empty if the call does not record the op
  Attrs attrs;
};

SampleNode node_of(const Op& op, const Sample& s, DType dtype) {
  Graph g;
  std::vector<Tensor> in;
  for (const SampleInput& i : s.inputs) in.push_back(g.input("x", i.shape, i.dtype.value_or(dtype)));
  SampleNode c;
  try {
    s.call(in);
  } catch (const Error&) {
    c.refused = true;
    return c;
  }
  for (const Node& n : g.nodes()) {
    if (n.op != &op) continue;
    const auto operand = [&](ValueId v) { return Operand{g.values()[v].dtype, g.values()[v].layout}; };
    c.attrs = n.attrs;
    for (ValueId v : n.in) c.operands.push_back(operand(v));
    for (ValueId v = n.first_out; v < n.first_out + n.outs; ++v) c.outs.push_back(operand(v));
    break;
  }
  return c;
}

// Whether the op accepts the dtype. The sample is called with this dtype and with a different one. An operand
// must have the dtype only in the first call.
bool takes(const Op& op, const Sample& s, DType dtype) {
  const SampleNode c = node_of(op, s, dtype), other = node_of(op, s, dtype == bf16 ? f16 : bf16);
  if (c.refused) return false;
  if (c.outs.empty()) return true;  // this dtype needs no op, such as a cast to itself
  const auto follows = [&](const std::vector<Operand>& mine, const std::vector<Operand>& others) {
    for (std::size_t i = 0; i < mine.size() && i < others.size(); ++i)
      if (mine[i].dtype == dtype && others[i].dtype != dtype) return true;
    return false;
  };
  return follows(c.operands, other.operands) || follows(c.outs, other.outs);
}

// Shortens "0.10000000000000001" to "0.1". Returns other strings unchanged.
std::string short_number(const std::string& text) {
  char* end = nullptr;
  const double x = std::strtod(text.c_str(), &end);
  if (text.find('.') == std::string::npos || *end != '\0') return text;
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.6g", x);
  return digits;
}

// An attribute's value with shortened numbers.
std::string short_numbers(const std::string& text) {
  std::string out, word;
  const auto flush = [&] { out += short_number(std::exchange(word, "")); };
  for (const char c : text) {
    if (std::string_view(" ,[]\"").find(c) == std::string_view::npos) {
      word += c;
    } else {
      flush();
      out += c;
    }
  }
  flush();
  return out;
}

// Splits "axes=[0, 1], keepdim=true" into its fields.
Fields fields_of(const Attrs& attrs) {
  Fields fields;
  std::string text = attrs.text();
  while (!text.empty()) {
    const std::size_t equals = text.find('=');
    std::size_t end = text.find('=', equals + 1);
    end = end == std::string::npos ? text.size() : text.rfind(", ", end);
    fields.emplace_back(text.substr(0, equals), short_numbers(text.substr(equals + 1, end - equals - 1)));
    text.erase(0, std::min(end + 2, text.size()));
  }
  return fields;
}

std::string shapes(const std::vector<Operand>& operands) {
  std::string s;
  for (const Operand& x : operands) {
    const bool under_test = x.dtype == f32;
    s += (s.empty() ? "" : ", ") + (under_test ? "" : std::string(name_of(x.dtype)) + " ") + x.shape().text();
  }
  return s;
}

// Properties of an op that are derived from its samples.
struct Facts {
  std::string dtypes, attributes, calls;
};

std::string dtypes_of(const Op& op, const std::vector<Sample>& samples, const Fields& attributes) {
  std::string taken;
  for (const DType t : all_dtypes)
    if (std::any_of(samples.begin(), samples.end(), [&](const Sample& s) { return takes(op, s, t); }))
      taken += (taken.empty() ? "" : " ") + std::string(name_of(t));
  if (!taken.empty()) return taken;
  const auto is_dtype = [](const auto& field) { return field.first == "dtype"; };
  return std::any_of(attributes.begin(), attributes.end(), is_dtype) ? "given by an attribute" : "fixed";
}

Facts facts_of(const Op& op) {
  const std::vector<Sample> samples = op.samples ? op.samples() : std::vector<Sample>();
  Facts facts;
  Fields first;
  for (const Sample& s : samples) {
    const SampleNode c = node_of(op, s, f32);
    if (c.outs.empty()) continue;
    const Fields fields = fields_of(c.attrs);
    const bool is_first = facts.calls.empty();
    if (is_first) first = fields;
    facts.calls += op.name + "/" + s.name + ": " + shapes(c.operands) + (c.operands.empty() ? "→ " : " → ") +
                   shapes(c.outs);
    for (std::size_t i = 0; i < fields.size(); ++i)
      if (is_first || fields[i].second != first[i].second)
        facts.calls += "  " + fields[i].first + "=" + fields[i].second;
    facts.calls += "\n";
  }
  for (const auto& [name, value] : first) facts.attributes += (facts.attributes.empty() ? "" : ", ") + name;
  facts.dtypes = dtypes_of(op, samples, first);
  return facts;
}

// The path of the file that defines the op, starting with its top-level folder: "ops/reduce.cpp".
std::string file_of(const Op& op) {
  const std::string path = op.where.file_name();
  const std::size_t slash = path.find_last_of('/');
  const std::size_t before = slash == std::string::npos ? slash : path.find_last_of('/', slash - 1);
  return before == std::string::npos ? path : path.substr(before + 1);
}

// Escapes a string for a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string s;
  for (const char c : text) s += c == '|' ? "\\|" : std::string(1, c);
  return " " + s + " |";
}

std::string row_of(const Op& op, const Facts& facts) {
  const std::size_t colon = std::min(op.doc.find(": "), op.doc.size());
  const std::string what = colon < op.doc.size() ? op.doc.substr(colon + 2) : "";
  std::string kind = op.view ? "view" : op.pointwise ? "pointwise" : "kernel";
  if (op.host) kind = "C++ function";
  if (op.decompose) kind += ", decomposes";
  return "|" + cell("`" + op.name + "`") + cell(op.doc.substr(0, colon)) + cell(what) +
         cell(facts.attributes) + cell(facts.dtypes) + cell(gradient_text(op)) + cell(kind) +
         cell("`" + file_of(op) + "`") + "\n";
}

// The files that define ops, in the order of the registry.
std::vector<std::string> files_of_ops() {
  std::vector<std::string> files;
  for (const Op* op : all_ops())
    if (std::find(files.begin(), files.end(), file_of(*op)) == files.end()) files.push_back(file_of(*op));
  return files;
}

}  // namespace

std::string reference() {
  std::string s = R"(# Ops

All ops, in the order of the files that define them. This page is generated from the definitions by
`build/tools/gradcheck --reference`, and a test compares the two. The functions that record ops are in `ops/ops.h`.
Some of them (`clamp`, `swiglu`, `var`, `stack`, …) are not listed here, because they record several of these ops.
The [samples](notes/op-samples.md) show shapes and attributes of each op.

- **operands**: inputs → outputs; `?` marks optional operands, z_x is the gradient with respect to x.
- **dtypes**: the dtypes with which the op's samples can be called, for operands other than indices and masks.
- **gradient**: *yes*: differentiable any number of times. *first order*: differentiable once. *by decomposition*:
  differentiable through simpler ops. *no*: the reason that the error gives if a gradient would pass through the op.
- **kind**: a *pointwise* op is fused with its neighbors into one pass over memory. A *view* costs nothing. An op that
  *decomposes* can be written with simpler ops, and `gradcheck` compares the two.

| op | operands | computes | attributes | dtypes | gradient | kind | file |
|---|---|---|---|---|---|---|---|
)";
  for (const std::string& file : files_of_ops())
    for (const Op* op : all_ops())
      if (file_of(*op) == file) s += row_of(*op, facts_of(*op));
  return s;
}

std::string sample_list() {
  std::string s = R"(# Samples of the ops

The samples that `gradcheck --op NAME` checks, with shapes (f32 unless a dtype is given). The first sample of an op lists
all attributes, and the others list those that differ. Pointwise ops are omitted, because they accept any shape. This page
is generated by `build/tools/gradcheck --op-samples`, and a test compares the two.
)";
  for (const std::string& file : files_of_ops()) {
    std::string calls;
    for (const Op* op : all_ops())
      if (file_of(*op) == file && !op->pointwise) calls += facts_of(*op).calls;
    if (!calls.empty()) s += "\n## " + file + "\n\n```\n" + calls + "```\n";
  }
  return s;
}

}  // namespace tg::gradcheck
