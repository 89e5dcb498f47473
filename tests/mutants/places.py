"""Finds all product code that a random mutant can change, draws some of these locations, and inserts the mutants.

A location is a range of a file's text. It has one or more changes, each of a kind:

    operator    + becomes -, < becomes <=, && becomes ||, += becomes -=, a sign or a ! is dropped, ++ becomes --
    constant    n becomes n + 1, n - 1 or 0; x becomes 2x, 1.01x or, from 0, 1; a character the next one; true becomes false
    condition   of if, for, while and ?: becomes its opposite, true or false; a loop's condition only becomes false
    index       a[i] becomes a[i + 1] or a[i - 1]
    arguments   two adjacent arguments are swapped, unless the function is symmetric (SYMMETRIC)
    deletion    an expression statement, break, continue, or a throw inside of an if is deleted
    calls       min becomes max (CALLS has all pairs), or two adjacent statements are swapped

The function draw() draws a location, then one of the location's kinds, then one of the changes of this kind.
All locations have equal probability.

These parts of the code are never mutated:

- Code that only the compiler evaluates: template arguments, static_assert, enumerators, case labels, array
  bounds, attributes, constexpr declarations, conditions of if constexpr, sizeof and decltype. Preprocessor
  lines and assembly code are also excluded.

- Messages, logs, names and descriptions. These are string literals, sums and streams with a string literal,
  and all code inside of a throw. Arguments of functions that report an error (MESSAGE_CALLS) are excluded,
  too. So are bodies of functions that write text for people (MESSAGE_FUNCTIONS), and files that only write
  logs and pictures of graphs (MESSAGE_FILES).

- The samples of ops, because they are tests. Calls that only reserve memory or prefetch (HINTS).

- Increments of loop counters, ++i, because their mutants only hang.

- A throw at the end of a function. Without it, the compiler may assume that the end is never reached. For a
  similar reason, no divisor becomes 0: the compiler may remove code that divides by 0.

- CUDA code that the GPU emulator replaces. These are the headers of instructions in
  tests/gpu_emulator/include, and the files in NOT_EMULATED.
"""
import bisect
import pathlib
import random
import re

ROOMS = {
    "ops": ["ops"],
    "cpu": ["backends/backend.cpp", "backends/cpu"],
    "compiler": ["core"],
    "engine": ["nn/generation"],
    "layers": ["nn/layers", "nn/models"],
    "io": ["io"],
    "training": ["train", "nn/optimizers"],
    "ranks": ["parallel"],
    "gradcheck": ["autograd"],
    "cuda": ["backends/cuda"],
}
KINDS = ("operator", "constant", "condition", "index", "arguments", "deletion", "calls")

MESSAGE_FILES = {"core/run/log.cpp", "core/run/log.h", "core/report/graph_text.cpp", "core/report/profile.cpp",
                 "core/report/profile.h", "core/base/messages.cpp",
                 "autograd/gradcheck/vcurve.cpp"}
EMULATED_INCLUDE = "tests/gpu_emulator/include"
NOT_EMULATED = {"backends/cuda/runtime/graph.cpp", "backends/cuda/collectives/nccl.cpp"}  # its CMakeLists.txt excludes these
MESSAGE_CALLS = re.compile(r"refuse\w*|fail|warn|printable|quoted|describe\w*|to_string|number_text|bytes_text|\w+Error|Error|"
                           r"OutOfMemory|RankLost|printf|fprintf|perror|runtime_error|invalid_argument|logic_error")
NO_RETURN = re.compile(r"refuse\w*|fail|rethrow\w*|abort|exit|_exit|terminate|__builtin_unreachable|__builtin_trap")
MESSAGE_FUNCTIONS = re.compile(r"describe\w*|explain\w*|refus\w*|\w*mistake|\w*message|printable|quoted|in_context|choice|"
                               r"\w*_choice|(?:number|bytes|operands|index|shape|profile|exchanges|value|attr)_text|\w*progress_line|"
                               r"mebibytes|short_time|short_count|\w*excerpt|joined_names|gguf_shown|doc|warn\w*")
HINTS = re.compile(r"reserve|shrink_to_fit|\w*prefetch\w*|cpu_relax|_mm_pause|yield|static_assert")
SYMMETRIC = re.compile(r"transpose|swap|min|max|fmin|fmax|fminf|fmaxf|smaller|larger|at_most|at_least|dot|gcd|lcm|logical_and|logical_or|same_bits|__fmul_rn|__fadd_rn|__dmul_rn|__dadd_rn")
SYMMETRIC_PAIR = re.compile(r"equal|not_equal|add_sizes")  # symmetric in their two arguments
PRODUCT = re.compile(r"fma|fmaf|__fmaf_rn|__fma_rn|multiply_add|add_product|add_pair_products")  # symmetric in the first two arguments
SKIPPED = {
    "preproc_include", "preproc_def", "preproc_function_def", "preproc_call", "preproc_directive", "template_argument_list",
    "template_parameter_list", "static_assert_declaration", "enum_specifier", "attribute_declaration", "attribute_specifier",
    "string_literal", "raw_string_literal", "concatenated_string", "comment", "decltype", "sizeof_expression",
    "alignas_qualifier", "alignof_expression", "using_declaration", "alias_declaration", "type_definition", "type_descriptor", "ERROR",
    "gnu_asm_expression", "noexcept", "requires_clause", "concept_definition", "requires_expression", "array_declarator",
    "bitfield_clause", "user_defined_literal", "explicit_function_specifier", "template_instantiation", "abstract_array_declarator",
}
OPERATORS = {
    "+": ["-"], "-": ["+"], "*": ["+", "/"], "/": ["*"], "%": ["/"], "<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="],
    ">=": [">", "<"], "==": ["!="], "!=": ["=="], "&&": ["||"], "||": ["&&"], "&": ["|"], "|": ["&"], "^": ["&"],
    "<<": [">>"], ">>": ["<<"], "+=": ["-=", "="], "-=": ["+=", "="], "*=": ["=", "/="], "/=": ["*="], "|=": ["="],
    "&=": ["="], "<<=": [">>="], ">>=": ["<<="], "^=": ["="],
}
PAIRS = ["min max", "fmin fmax", "sin cos", "floor ceil", "front back", "begin end", "first last", "lower_bound upper_bound", "any_of all_of", "exp exp2", "exp expm1", "log log2", "log log1p", "sqrt cbrt",
         "round trunc", "min_element max_element", "lock unlock", "subspan first", "lookup find", "rows columns",
         "sum mean", "unsqueeze squeeze", "add sub", "mul div", "argmin argmax", "is_row_major is_contiguous",
         "fetch_add fetch_sub", "pop_back pop_front",
         "popcount countl_zero", "countl_zero countr_zero", "ceil_div round_up", "row_major contiguous", "prefix suffix",
         "starts_with ends_with", "find rfind", "find_first_of find_first_not_of", 
         "acquire release", "substr append", "stoi stoll", "pread pwrite", "isinf isnan", "isfinite isnan", "_mm512_max_ps _mm512_min_ps",
         "_mm256_max_ps _mm256_min_ps", "atomicAdd atomicMax", "fmaxf fminf", "zeros ones", "weight bias", "maximum minimum"]
CALLS = {}
for pair in PAIRS:
    a, b = pair.split()
    CALLS.setdefault(a, []).append(b)
    CALLS.setdefault(b, []).append(a)
# The parser does not know some CUDA keywords, so spaces replace them before it reads a file. Pragmas in
# strings with source code are not replaced, because the end of the string may be on the same line.
UNKNOWN = re.compile(rb"__device__|__global__|__host__|__forceinline__|__noinline__|__restrict__|__shared__|__constant__|__grid_constant__|"
                     rb"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|\[\[gnu::always_inline\]\]|TG_INLINE|(?m:^[ \t]*#pragma unroll[^\n]*)")


class Change:
    def __init__(self, kind, wrong, form):
        self.kind, self.wrong, self.form = kind, wrong, form  # form: "expression", "condition" or "statement"


class Place:
    def __init__(self, file, start, end):
        self.file, self.start, self.end = file, start, end
        self.changes = []
        self.in_branch = False  # inside a preprocessor condition, so this build may not compile it


class Mutant:
    def __init__(self, number, room, place, change, source):
        self.number, self.room, self.place = number, room, place
        self.file, self.start, self.end = place.file, place.start, place.end
        self.kind, self.wrong, self.form = change.kind, change.wrong, change.form
        self.in_branch = place.in_branch
        self.line = source.count(b"\n", 0, self.start) + 1
        first = source.rfind(b"\n", 0, self.start) + 1
        last = source.find(b"\n", self.end)
        last = len(source) if last < 0 else last
        self.old = [line.strip() for line in source[first:last].decode().split("\n")]
        changed = source[first:self.start].decode() + self.wrong + source[self.end:last].decode()
        self.new = [line.strip() for line in changed.split("\n")]
        while len(self.old) > 1 and len(self.new) > 1 and self.old[-1] == self.new[-1]:
            self.old.pop(), self.new.pop()
        while len(self.old) > 1 and len(self.new) > 1 and self.old[0] == self.new[0]:
            self.old.pop(0), self.new.pop(0)

    def key(self):
        return (self.file, " ".join(self.old), " ".join(self.new))

    def text(self):
        return "\n".join(["- " + line for line in self.old] + ["+ " + line for line in self.new])


def product_files(root, room):
    files = []
    for name in ROOMS[room]:
        path = root / name
        files += [path] if path.is_file() else [p for p in path.rglob("*") if p.suffix in (".cpp", ".h", ".cu", ".cuh")]
    names = sorted(str(p.relative_to(root)) for p in files)
    return [n for n in names if n not in MESSAGE_FILES and n not in NOT_EMULATED and not (root / EMULATED_INCLUDE / n).exists()]


class Finder:
    def __init__(self, file, source, tree_root):
        self.file, self.source = file, source
        self.places = {}
        flat = bytearray(source)
        self.comments(tree_root, flat)
        self.flat = bytes(flat)
        self.walk(tree_root, False)

    def comments(self, node, flat):
        """Replaces comments by spaces, so that a change can be written on one line."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node.type == "comment":
                flat[node.start_byte:node.end_byte] = re.sub(rb"[^\n]", b" ", flat[node.start_byte:node.end_byte])
            else:
                stack += node.children

    def text(self, start, end):
        return re.sub(r"\s*\n\s*", " ", self.flat[start:end].decode()).strip()

    def of(self, node):
        return self.text(node.start_byte, node.end_byte)

    def add(self, start, end, kind, wrong, form, branch):
        if b"\n#" in self.source[start:end] or b'R"' in self.source[start:end]:
            return
        place = self.places.setdefault((start, end), Place(self.file, start, end))
        place.in_branch |= branch
        if wrong != self.text(start, end):
            place.changes.append(Change(kind, wrong, form))

    def name_of_call(self, node):
        function = node.child_by_field_name("function")
        while function is not None and function.type in ("field_expression", "qualified_identifier", "template_function",
                                                         "template_method", "dependent_name"):
            inner = function.child_by_field_name("field") or function.child_by_field_name("name")
            if inner is None:
                break
            function = inner
        return function

    def is_message(self, node):
        """Returns whether it is a sum or a stream that contains a string literal."""
        if node.type != "binary_expression" or self.of(node.child_by_field_name("operator")) not in ("+", "<<"):
            return False
        parts = [node.child_by_field_name("left"), node.child_by_field_name("right")]
        return any(p.type in ("string_literal", "concatenated_string", "raw_string_literal") or self.of(p) in ("std::cerr", "std::clog") or
                   p.type == "call_expression" and re.match(r"std::string\(\s*\"|std::to_string", self.of(p)) or self.is_message(p)
                   for p in parts)

    def calls(self, node):
        """Returns the name of the function that an expression statement calls, or ''."""
        node = node.named_children[0] if node.named_children else node
        return self.of(self.name_of_call(node)) if node.type == "call_expression" and self.name_of_call(node) is not None else ""

    def may_end_function(self, node):
        """Returns whether a statement is the last statement of its function."""
        while True:
            parent = node.parent
            if parent is None or parent.type in ("function_definition", "lambda_expression"):
                return True
            if parent.type in ("compound_statement", "case_statement"):
                later = [c for c in parent.named_children if c.start_byte >= node.end_byte and c.type != "comment"]
                if later:
                    return False
            if parent.type in ("for_statement", "while_statement", "do_statement", "for_range_loop"):
                return False
            node = parent

    def walk(self, node, branch):
        kind = node.type
        if kind in SKIPPED or node.is_missing:
            return
        if kind in ("preproc_if", "preproc_ifdef", "preproc_else", "preproc_elif"):
            branch = True
        skipped = []  # children that are not visited
        if kind in ("declaration", "field_declaration"):
            if any(c.type == "type_qualifier" and self.of(c) in ("constexpr", "constinit") for c in node.children):
                return
        elif kind == "function_definition":
            if self.is_left_out(node):
                return
        elif kind == "throw_statement":
            self.deletion(node, branch)
            return
        elif kind == "case_statement":
            value = node.child_by_field_name("value")
            skipped += [value] if value else []
        elif kind == "initializer_pair":
            designator = self.of(node.children[0])
            if designator in (".samples", ".doc", ".name", ".summary", ".explain"):
                return
        elif kind == "call_expression":
            self.call(node, branch, skipped)
        elif kind == "compound_literal_expression":
            self.swaps(node, node.child_by_field_name("value"), branch)
        elif kind == "binary_expression":
            if self.is_message(node):
                return
            self.operator(node, branch)
        elif kind == "assignment_expression":
            self.operator(node, branch)
        elif kind == "unary_expression":
            operator = self.of(node.child_by_field_name("operator"))
            argument = node.child_by_field_name("argument")
            if operator == "-" and argument.type == "number_literal":
                skipped.append(argument)
                self.number(node, branch)
            if operator in ("-", "!", "~"):
                wrong = self.of(argument)
                self.add(node.start_byte, node.end_byte, "operator", f"static_cast<bool>({wrong})" if operator == "!" else wrong, "expression", branch)
        elif kind == "update_expression":
            if node.parent.type != "for_statement" and not self.in_update(node):
                text = self.of(node)
                wrong = text.replace("++", "--") if "++" in text else text.replace("--", "++")
                self.add(node.start_byte, node.end_byte, "operator", wrong, "expression", branch)
        elif kind == "number_literal":
            self.number(node, branch)
        elif kind == "char_literal":
            text = self.of(node)
            if node.parent.type != "case_statement":
                self.add(node.start_byte, node.end_byte, "constant", f"static_cast<decltype({text})>({text} + 1)", "expression", branch)
        elif kind in ("true", "false"):
            if not (node.parent.type == "condition_clause" and node.parent.parent.type in ("while_statement", "do_statement")):
                self.add(node.start_byte, node.end_byte, "constant", "false" if kind == "true" else "true", "expression", branch)
        elif kind == "if_statement":
            if any(c.type == "constexpr" for c in node.children):
                skipped.append(node.child_by_field_name("condition"))
            else:
                self.condition(self.clause(node), branch, True)
        elif kind in ("while_statement", "do_statement"):
            self.condition(self.clause(node), branch, False)
        elif kind == "for_statement":
            self.condition(node.child_by_field_name("condition"), branch, False)
        elif kind == "conditional_expression":
            self.condition(node.child_by_field_name("condition"), branch, True)
        elif kind == "subscript_expression":
            indices = node.child_by_field_name("indices")
            inner = [c for c in indices.named_children if c.type != "comment"] if indices else []
            if len(inner) == 1 and inner[0].type not in SKIPPED and inner[0].type != "initializer_list":
                text = self.of(inner[0])
                for wrong in (f"({text}) + 1", f"({text}) - 1"):
                    self.add(inner[0].start_byte, inner[0].end_byte, "index", wrong, "expression", branch)
        elif kind in ("expression_statement", "break_statement", "continue_statement"):
            if kind == "expression_statement" and self.is_hint(node):
                return
            self.deletion(node, branch)
        if kind in ("compound_statement", "case_statement"):
            self.neighbours(node, branch)
        for child in node.children:
            if child not in skipped:
                self.walk(child, branch)

    def is_left_out(self, node):
        if any(c.type == "type_qualifier" and self.of(c) == "consteval" for c in node.children):
            return True
        declarator = node.child_by_field_name("declarator")
        while declarator is not None and declarator.type != "function_declarator":
            declarator = declarator.child_by_field_name("declarator")
        if declarator is None:
            return False
        name = self.of(declarator.child_by_field_name("declarator")).rsplit("::", 1)[-1]
        returned = node.child_by_field_name("type")
        return "Sample" in (self.of(returned) if returned else "") or name.endswith("samples") or name in ("variants", "variant") or bool(MESSAGE_FUNCTIONS.fullmatch(name))

    def is_hint(self, node):
        inner = node.named_children
        if not inner:
            return True
        if HINTS.fullmatch(self.calls(node)) or re.match(r"\(void\)|static_cast<void>", self.of(node)):
            return True
        return inner[0].type == "binary_expression" and self.is_message(inner[0])

    def in_update(self, node):
        while node.parent is not None and node.parent.type == "comma_expression":
            node = node.parent
        return node.parent is not None and node.parent.type == "for_statement"

    def clause(self, node):
        condition = node.child_by_field_name("condition")
        if condition is None:
            return None
        if condition.type == "parenthesized_expression":
            return condition.named_children[0]
        return condition.child_by_field_name("value") if condition.type == "condition_clause" else condition

    def condition(self, node, branch, both):
        if node is None or node.type in ("true", "false", "declaration", "condition_declaration") or node.type in SKIPPED:
            return
        start, end, text = node.start_byte, node.end_byte, self.of(node)
        for wrong in ([f"!({text})", "true", "false"] if both else ["false"]):
            self.add(start, end, "condition", wrong, "condition", branch)

    def operator(self, node, branch):
        operator = node.child_by_field_name("operator")
        tight = node.parent.type in ("binary_expression", "unary_expression", "pointer_expression", "field_expression")
        for wrong in OPERATORS.get(self.of(operator), []):
            text = f"{self.text(node.start_byte, operator.start_byte)} {wrong} {self.text(operator.end_byte, node.end_byte)}"
            self.add(node.start_byte, node.end_byte, "operator", f"({text})" if tight else text, "expression", branch)

    def number(self, node, branch):
        text = self.of(node)
        digits = text.lstrip("-").lower().replace("'", "")
        whole = re.fullmatch(r"(0x[0-9a-f]+|0b[01]+|[0-9]+)((?:u|l|ul|ll|ull|z|uz)?)", digits)
        if whole:
            value = int(whole[1], 0 if whole[1][:2] in ("0x", "0b") else 10)
            values = [value + 1] + [value - 1] * (value > 0) + [0] * (value > 1)
            if self.is_divisor(node):
                values = [v for v in values if v != 0]
            wrongs = [f"{'-' * (text[0] == '-')}{hex(v) if whole[1].startswith('0x') else v}{whole[2]}" for v in values]
        elif re.search(r"[1-9]", digits.split("e")[0]):
            wrongs = [f"({text} * 2)", f"({text} * {'1.01f' if digits.endswith('f') else '1.01'})"]
        else:
            wrongs = [f"({text} + 1)"]
        for wrong in wrongs:
            self.add(node.start_byte, node.end_byte, "constant", wrong, "expression", branch)

    def is_divisor(self, node):
        operator = node.parent.child_by_field_name("operator")
        return operator is not None and self.of(operator) in ("/", "%", "/=", "%=") and node == node.parent.child_by_field_name("right")

    def call(self, node, branch, skipped):
        function, arguments = self.name_of_call(node), node.child_by_field_name("arguments")
        if function is None or arguments is None:
            return
        name = self.of(function)
        if MESSAGE_CALLS.fullmatch(name) or HINTS.fullmatch(name):
            skipped.append(arguments)
            return
        for other in CALLS.get(name, []):
            text = f"{self.text(node.start_byte, function.start_byte)}{other}{self.text(function.end_byte, node.end_byte)}"
            self.add(node.start_byte, node.end_byte, "calls", text, "expression", branch)
        self.swaps(node, arguments, branch)

    def swaps(self, node, arguments, branch):
        name = self.of(self.name_of_call(node)) if node.type == "call_expression" else ""
        parts = [c for c in arguments.named_children if c.type != "comment"]
        if SYMMETRIC.fullmatch(name) or SYMMETRIC_PAIR.fullmatch(name) and len(parts) == 2:
            return
        for a, b in list(zip(parts, parts[1:]))[1 if PRODUCT.fullmatch(name) else 0:]:
            if {a.type, b.type} & {"initializer_pair", "lambda_expression", "ERROR"} or self.of(a) == self.of(b):
                continue
            if (a.type == "string_literal") != (b.type == "string_literal"):
                continue
            text = (self.text(node.start_byte, a.start_byte) + self.of(b) + self.text(a.end_byte, b.start_byte) + " " + self.of(a) +
                    self.text(b.end_byte, node.end_byte))
            self.add(node.start_byte, node.end_byte, "arguments", text, "expression", branch)

    def deletion(self, node, branch):
        name = self.calls(node) if node.type == "expression_statement" else ""
        if node.type == "throw_statement" or NO_RETURN.fullmatch(name):
            if self.may_end_function(node):
                return
        self.add(node.start_byte, node.end_byte, "deletion", "", "statement", branch)

    def neighbours(self, node, branch):
        statements = [c for c in node.named_children if c.type != "comment"]
        for a, b in zip(statements, statements[1:]):
            if a.type == b.type == "expression_statement" and not self.is_hint(a) and not self.is_hint(b) and self.of(a) != self.of(b):
                if NO_RETURN.fullmatch(self.calls(a)) or NO_RETURN.fullmatch(self.calls(b)):
                    continue
                self.add(a.start_byte, b.end_byte, "calls", f"{self.of(b)} {self.of(a)}", "statement", branch)


def parser():
    import tree_sitter
    import tree_sitter_cpp
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language()))


def find(file, source, parse=None):
    """Returns all locations in a file, from the beginning to the end."""
    blank = UNKNOWN.sub(lambda m: re.sub(rb"[^\n]", b" ", m.group()), source)
    tree = (parse or parser()).parse(blank)
    places = Finder(file, source, tree.root_node).places.values()
    return sorted((p for p in places if p.changes), key=lambda p: (p.start, p.end))


def order_of_draw(places, seed, room):
    """Returns the drawn locations with one change each, in the order of the draw."""
    generator = random.Random(f"{seed}:{room}")
    drawn = list(places)
    generator.shuffle(drawn)
    for place in drawn:
        kinds = sorted({c.kind for c in place.changes}, key=KINDS.index)
        kind = generator.choice(kinds)
        yield place, generator.choice([c for c in place.changes if c.kind == kind])


def crosses(a, b):
    """Returns whether two ranges overlap and neither contains the other."""
    return a.start < b.start < a.end < b.end or b.start < a.start < b.end < a.end


def planted(source, mutants):
    """Returns the text of a file with its mutants, and the range of each mutant in this text. The first line,
    which includes the switch, is omitted.

    If a mutant contains another mutant, the inner mutant is only in the original text of the outer mutant.
    Line numbers do not change."""
    ranges = {}

    def write(start, end, inner, at):
        out = []
        length = 0

        def put(text):
            nonlocal length
            out.append(text)
            length += len(text)
        here = start
        inner = sorted(inner, key=lambda m: (m.start, -m.end))
        while inner:
            m = inner.pop(0)
            nested = [i for i in inner if i.end <= m.end]
            inner = inner[len(nested):]
            put(source[here:m.start])
            begun = at + length
            wrong = m.wrong.encode()
            if m.form == "statement":
                before, after = b"{ if (::tg::mutant(%d)) { %s } else { " % (m.number, wrong), b" } }"
            elif m.form == "condition":
                before, after = b"(::tg::mutant(%d) ? (%s) : static_cast<bool>(" % (m.number, wrong), b"))"
            else:
                before, after = b"(::tg::mutant(%d) ? (%s) : (" % (m.number, wrong), b"))"
            put(before)
            put(write(m.start, m.end, nested, at + length))
            put(after)
            ranges[m.number] = (begun, at + length)
            here = m.end
        put(source[here:end])
        return b"".join(out)
    text = write(0, len(source), mutants, 0)
    return text, ranges


class Lines:
    """Finds the mutant for a compiler's message, by line and column (in bytes), both counted from 1."""

    def __init__(self, text, ranges):
        self.starts = [0]
        for match in re.finditer(b"\n", text):
            self.starts.append(match.end())
        self.ranges = sorted(ranges.items(), key=lambda r: (r[1][0], -r[1][1]))

    def mutant_at(self, line, column):
        if line > len(self.starts):
            return None
        at = self.starts[line - 1] + column - 1
        inside = [n for n, (start, end) in self.ranges if start <= at < end]
        return inside[-1] if inside else None


def read_equivalents(path):
    """Reads a file of equivalent mutants as {(file, old, new): reason}. The head of the file describes its format."""
    found = {}
    for block in re.split(r"\n\s*\n", path.read_text() if path.exists() else ""):
        lines = [line for line in block.split("\n") if line.strip() and not line.startswith("#")]
        if not lines:
            continue
        old = " ".join(line[2:].strip() for line in lines if line.startswith("- "))
        new = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
        reason = " ".join(line.strip() for line in lines[1:] if line[0] not in "-+")
        if not old or not reason or re.search(r"(?:^| )\w+/[\w/]+\.(?:cpp|h|cu|cuh)(?: |$)", reason):
            raise SystemExit(f"{path.name}: an entry needs a file, lines with - and +, and a reason, and an empty line after it:\n{block}")
        found[(lines[0].strip(), old, new.strip())] = reason
    return found
