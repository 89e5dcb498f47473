#!/usr/bin/env python3
"""random_check.py COMPILER FOLDER: checks that random mutants are found, drawn and inserted as
`tests/mutants/places.py` documents.

A small program contains every kind of mutable code, and code that must not be mutated. All mutants must
compile, and most must change the output. Each mutant that is reached must be counted. The parser is cached in
FOLDER. Exits with status 77 if the parser cannot be installed.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import places
import plant
import random_run

SOURCE = b"""#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>
#include <string>

static_assert(1 + 1 == 2);
constexpr int width = 3;
enum Color { red = 4 };
#define TWICE(x) ((x) * 2)

std::string describe(int x) { return "is " + std::to_string(x + 5); }

template <int n = 6>
int nth(auto a, auto i) {
  return a[i];
}

int run(int x) {
  std::array<int, 2 + 2> a = {};
  if constexpr (width > 2) ++x;
  a.fill(x);  // a comment, with (parentheses
  switch (x) {
    case 7:
      throw std::runtime_error("bad " + std::to_string(x + 8));
    default: break;
  }
  const std::string s = "x" + std::to_string(x * 9);
  for (int i = x; i > x - x; --i) break;
  x += std::max(x,
                x + x);
  if (x > x - x) x = x + nth<>(a.data(), x - x);
  return std::min(x, -x);
}

int main() { return std::printf("%d", run(static_cast<int>(sizeof(char)))) < sizeof(int) - sizeof(int); }
"""


def expect(what, got, expected):
    if got != expected:
        sys.exit(f"FAILED: {what}: got {got!r}, expected {expected!r}")


def line_of(at):
    return SOURCE.count(b"\n", 0, at) + 1


def unattributed(compiler, folder):
    """Finds the mutants that do not compile, if the compiler's message names no line of their file."""
    header = b"struct B { virtual int g() = 0; };\ntemplate <class T> struct H : B { T v; int g() override { return v.g(); } };\n"
    source = b"""#include "h.h"
struct A { int g() { return 1 + 1; } };
template <class T, class U> B* make(T, U) { return new H<T>; }
B* f(A a, int n) { return make(a, n); }
"""
    tree = folder / "unattributed"
    (tree / "build").mkdir(parents=True, exist_ok=True)
    (tree / "h.h").write_bytes(header)
    (tree / "u.cpp").write_bytes(source)
    (tree / "random_switch.h").write_text("namespace tg { bool mutant(int); }\n")
    command = f"{compiler} -std=c++20 -o u.o -c {tree}/u.cpp"
    (tree / "build/compile_commands.json").write_text(json.dumps([{"directory": str(tree), "command": command, "file": f"{tree}/u.cpp"}]))
    units = random_run.Units(tree, tree / "build")
    changes = [(p, c) for p in places.find("u.cpp", source) for c in p.changes if c.wrong in ("1 - 1", "make(n, a)")]
    mutants = [places.Mutant(i + 1, "ops", p, c, source) for i, (p, c) in enumerate(changes)]
    return list(units.failing_alone("u.cpp", mutants, source))


def main():
    compiler, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    random_run.need_parser(folder)
    found = places.find("a.cpp", SOURCE)
    kinds = {kind for p in found for kind in {c.kind for c in p.changes}}
    expect("the kinds of a program with all but a constant", sorted(kinds), sorted(set(places.KINDS) - {"constant"}))
    lines = sorted({line_of(p.start) for p in found})
    for text in ("static_assert", "width = 3", "red", "TWICE", "describe", "int n = 6", "2 + 2", "case 7", "std::string s"):
        line = line_of(SOURCE.index(text.encode()))
        if line in lines:
            sys.exit(f"FAILED: the line with {text} can be mutated")
    divided = places.find("d.cpp", b"int f(int x) { x %= 8; return x / 2; }\n")
    wrong = [c.wrong for p in divided for c in p.changes if c.kind == "constant"]
    expect("divisors", wrong, ["9", "7", "3", "1"])
    pragma = places.find("p.cpp", b"""std::string f() {
  const std::string each = "      #pragma unroll\\n      for (int n = 0; n < " + loads +
                           ";\\n      const I i = (row * " + packs +
                           " + pack) * " + of_pack + ";\\n";
  return each;
}
""")
    expect("places in source text that is a string", [c.wrong for p in pragma for c in p.changes], [])
    numbers = places.find("b.cpp", b"int f() { g(7, 0x10u, 2.5f, -3, true, 'a'); }\n")
    wrong = [c.wrong for p in numbers for c in p.changes if c.kind == "constant"]
    expect("constants", wrong, ["8", "6", "0", "0x11u", "0xfu", "0x0u", "(2.5f * 2)", "(2.5f * 1.01f)", "-4", "-2", "-0", "false",
                                "static_cast<decltype('a')>('a' + 1)"])
    order = [(p.start, c.wrong) for p, c in places.order_of_draw(found, "3", "ops")]
    expect("a second draw with the same seed", [(p.start, c.wrong) for p, c in places.order_of_draw(found, "3", "ops")], order)
    if order == [(p.start, c.wrong) for p, c in places.order_of_draw(found, "4", "ops")]:
        sys.exit("FAILED: two seeds draw the same")

    mutants = []
    for place in found:  # every change of the program, including nested changes
        for change in place.changes:
            mutants.append(places.Mutant(len(mutants) + 1, "ops", place, change, SOURCE))
    chosen = []
    for m in mutants:
        if not any(places.crosses(m, c) or (m.start, m.end) == (c.start, c.end) for c in chosen):
            chosen.append(m)
    text, ranges = places.planted(SOURCE, chosen)
    expect("the number of lines of the planted text", text.count(b"\n"), SOURCE.count(b"\n"))
    at = places.Lines(text, ranges)
    for m in chosen:
        start = ranges[m.number][0]
        line, column = text.count(b"\n", 0, start) + 1, start - text.rfind(b"\n", 0, start)
        expect("the mutant of a message", at.mutant_at(line, column), m.number)
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place)
        head = f'#include "{plant.HERE}/random_switch.h"\n#line 1\n'
        (path / "a.cpp").write_text(head + text.decode())
        subprocess.run([compiler, "-std=c++20", "-w", "-O1", "-o", path / "a", path / "a.cpp", plant.HERE / "random_switch.cpp"], check=True)

        def output(**environment):
            return subprocess.run([path / "a"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20)
        right = output()
        expect("the program without a mutant", right.returncode, 0)
        (path / "reached").write_bytes(bytes(1 << 16))
        expect("the program that is counted", output(TG_MUTANT_COVERAGE=str(path / "reached")).stdout, right.stdout)
        reached = {i for i, byte in enumerate((path / "reached").read_bytes()) if byte}
        if not reached or not reached <= set(ranges):
            sys.exit(f"FAILED: the mutants {sorted(reached)} of {sorted(ranges)} are reached")
        changed = [m.number for m in chosen if (o := output(TG_MUTANT=str(m.number))).stdout != right.stdout or o.returncode]
        if not set(changed) <= reached or 2 * len(changed) < len(reached):
            sys.exit(f"FAILED: the mutants {changed} change the output, {sorted(reached)} are reached")
    expect("the mutants that do not compile", unattributed(compiler, folder), [2])
    low, high = random_run.wilson(2, 40)
    expect("the interval of 2 in 40", (round(low, 4), round(high, 4)), (0.0138, 0.165))
    for room in places.ROOMS:
        if not places.product_files(random_run.ROOT, room):
            sys.exit(f"FAILED: room {room} has no files")
    left_out = re.search(r'EXCLUDE REGEX "/\(([\w|]+)\)\.cpp\$"', (random_run.ROOT / "tests/gpu_emulator/CMakeLists.txt").read_text())
    expect("what the emulator leaves out", set(left_out[1].split("|")), {pathlib.PurePath(path).stem for path in places.NOT_EMULATED})
    if "backends/cuda/tile/ptx_sm80.cuh" in places.product_files(random_run.ROOT, "cuda"):
        sys.exit("FAILED: room cuda has a header that the emulator replaces")
    for file, old, _ in places.read_equivalents(plant.HERE / "equivalent.txt"):
        text = " ".join(line.strip() for line in (random_run.ROOT / file).read_text().split("\n"))
        if old not in text:
            sys.exit(f"FAILED: equivalent.txt has lines that {file} does not have: {old}")
    print(f"{len(found)} places, {len(chosen)} mutants planted, {len(reached)} reached, {len(changed)} change the output")


if __name__ == "__main__":
    main()
