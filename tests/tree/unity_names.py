#!/usr/bin/env python3
"""Checks that files that are compiled together (a unity build) share no name in unnamed namespaces.

    unity_names.py BUILD | --self-test

BUILD is the build tree. Its generated files list the sources that are compiled together. If two files define
a function with the same parameters, the compiler reports it. If the parameters differ, one function hides or
overloads the other without a message. This check finds both cases in a second, and prints both locations.
"""
import collections
import pathlib
import re
import sys
import tempfile

COMMENT_OR_LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
# Matches the name that a declaration in a namespace introduces. The text before the name is removed first.
TYPE = re.compile(r"\b(?:struct|class|enum(?:\s+class)?|union|concept)\s+(?:alignas\([^)]*\)\s*)?(\w+)\s*(?:final)?\s*[:{;<=]")
ALIAS = re.compile(r"^\s*(?:using|namespace)\s+(\w+)\s*=")
FUNCTION = re.compile(r"([\w:~]+)\s*\(")
VARIABLE = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=|\{|;|$)")
NOT_NAMES = {"if", "for", "while", "switch", "return", "sizeof", "alignof", "decltype", "requires", "static_assert", "alignas",
             "__attribute__", "__launch_bounds__", "__align__", "operator", "noexcept"}


def without_comments(text):
    """Returns the text with blanks instead of comments and literals. Offsets and line numbers do not
    change."""
    return COMMENT_OR_LITERAL.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def without_brackets(text):
    """Returns the text without <...>, because it may contain commas, names and parentheses."""
    while True:
        shorter = re.sub(r"<[^<>;{}]*>", " ", text)
        if shorter == text:
            return text
        text = shorter


def name_of(declaration):
    """Returns the name that a declaration introduces, or None if it introduces no name or specializes a
    template."""
    text = re.sub(r"^\s*#.*$", " ", declaration, flags=re.M)
    if re.match(r"\s*template\s*<\s*>", text):
        return None
    text = re.sub(r"\[\[.*?\]\]|__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)|alignas\s*\([^()]*\)|__align__\s*\([^()]*\)", " ", text)
    text = re.sub(r"^\s*template\s*(?=<)", " ", without_brackets(text))
    if ALIAS.match(text):
        return None  # two files may declare the same alias; if they differ, the compiler rejects them
    if match := TYPE.search(text.split("(")[0] + "{"):
        return match.group(1)
    if re.match(r"\s*(using|static_assert|extern|friend|asm)\b", text):
        return None
    head = text.split("=")[0]
    for match in FUNCTION.finditer(head):
        name = match.group(1)
        if name not in NOT_NAMES:
            return None if "::" in name or "operator" in head[: match.start() + 8] else name
    match = VARIABLE.search(text.split("{")[0])
    return match.group(1) if match and match.group(1) not in NOT_NAMES else None


def unnamed_names(text):
    """Returns (name with its enclosing namespaces, line) for each declaration directly in an unnamed
    namespace."""
    text = without_comments(text)
    names, scopes, start, position = [], [], 0, 0
    parentheses = 0

    def add(name, before):
        around = [scope[len("namespace ") :] for scope in scopes if scope != "namespace"]
        names.append(("::".join([*around, name]), text.count("\n", 0, start + len(before) - len(before.lstrip())) + 1))

    for match in re.finditer(r"[{};()]", text):
        mark, position = match.group(0), match.start()
        if mark in "()":
            parentheses += 1 if mark == "(" else -1
            continue
        if parentheses:
            if mark == "{":
                scopes.append("in parentheses")
            elif mark == "}" and scopes and scopes[-1] == "in parentheses":
                scopes.pop()
            continue
        before = text[start:position]
        here = all(scope.startswith("namespace") for scope in scopes) and "namespace" in scopes
        if mark == "{":
            opened = re.search(r"\bnamespace\b([^;{}]*)$", before)
            if opened:
                scopes.append(f"namespace {opened.group(1).strip()}".strip())
                start = match.end()
                continue
            if here and (name := name_of(before)):
                add(name, before)
            scopes.append("body")
        elif mark == ";":
            if here and before.strip() and (name := name_of(before)):
                add(name, before)
            if here or not scopes or scopes[-1].startswith("namespace"):
                start = match.end()
        else:
            if scopes:
                scopes.pop()
            rest = text[match.end() : match.end() + 1]
            if rest != ";":
                start = match.end()
            else:
                start = match.end() + 1
    return names


def check(build):
    units = sorted(build.glob("**/Unity/unity_*.cxx")) + sorted(build.glob("kernels/*_and_more.cu"))
    if not units:
        print(f"{build} has no unity builds: nothing to check")
    faults = []
    for unit in units:
        defined = collections.defaultdict(dict)
        sources = [ROOT / path for path in re.findall(r'^#include "(.*)"', unit.read_text(), re.M)]
        if not all(source.exists() for source in sources):
            continue  # CMake keeps units of earlier configurations
        for source in sources:
            for name, line in unnamed_names(source.read_text()):
                defined[name].setdefault(source, line)
        for name, places in defined.items():
            if len(places) > 1:
                where = " and ".join(f"{source.relative_to(ROOT) if source.is_relative_to(ROOT) else source}:{line}"
                                     for source, line in places.items())
                faults.append(f"{name} is in unnamed namespaces of {where}, which are compiled as one file: rename one")
    print("\n".join(sorted(set(faults))), end="\n" if faults else "")
    return not faults


def self_test():
    sample = """namespace tg { namespace {
      constexpr int limit = 3, *p = {};  // int other(int);
      struct Row { int f(); int width; };
      template <class T, class U = std::pair<T, T>> T* first_of(std::vector<T> v) { int local; return g(v); }
      enum class Kind { a, b };
      using Names = std::map<int, std::string>;
      const char* table[] = {"struct X {", "y"};
      auto square = [](int x) { return x * x; };
      bool Row::helper() { return true; }
      bool operator==(const Row& a, const Row& b) { return true; }
      static_assert(limit == 3);
      __global__ __launch_bounds__(threads(2)) void kernel(int* out) { if (out) { *out = 1; } }
    }  // namespace
    int outside(int x) { return x; } namespace named { struct Inner {}; } }"""
    found = [name for name, _ in unnamed_names(sample)]
    expected = ["tg::" + name for name in ("limit", "Row", "first_of", "Kind", "table", "square", "kernel")]
    assert found == expected, found
    with tempfile.TemporaryDirectory() as folder:
        build = pathlib.Path(folder)
        (build / "a.dir/Unity").mkdir(parents=True)
        for name, text in (("a", "namespace { int twice(int); }"), ("b", "namespace {\n double twice(double); }")):
            (build / f"{name}.cpp").write_text(text)
        unit = build / "a.dir/Unity/unity_0_cxx.cxx"
        unit.write_text(f'#include "{build}/a.cpp"\n#include "{build}/b.cpp"\n')
        assert not check(build)
        (build / "b.cpp").write_text("namespace { double half(double); }")
        assert check(build)


ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
if sys.argv[1] == "--self-test":
    self_test()
else:
    sys.exit(not check(pathlib.Path(sys.argv[1])))
