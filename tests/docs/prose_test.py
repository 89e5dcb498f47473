#!/usr/bin/env python3
"""Tests of prose.py: for each rule, sentences that it must and must not report; also the exit status and
determinism."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import prose

CASES = {  # rule: (must be reported, must not be reported)
    "long": (" ".join(["word"] * 31) + ".", " ".join(["word"] * 30) + "."),
    "of-chain": ("The size of the row of the key of the head of a model.", "The size of the row of the key of a model."),
    "semicolons": ("The first part reads keys here; the second part reads values; the third part writes the final result.", "The first part reads keys; the second writes the final result of all the parts."),
    "what-subject": ("What a rank sends in a step is printed.", "What to expect of pages in practice."),
    "what-noun": ("The kernel adds in memory what it has rounded before.", "The page shows what it costs."),
    "of-which": ("A run of which one rank stops.", "Two shards, each of which has a header."),
    "elided-verb": ("f16 has not: its range is smaller.", "The value is not, in general, exact."),
    "for-because": ("Short code, for it runs once.", "A kernel, for operands that are small."),
    "where-if": ("Skipped where there is no GPU.", "The file where the table is."),
    "but-for": ("Nothing is allocated but for a vector.", "All but the last group are done."),
    "none": ("Rows that are no multiple of 8.", "There is no multiple of 8."),
    "as-many": ("At most so many tokens in a text.", "It has as many rows as columns."),
    "another-than": ("The sum has another shape than the result.", "The sum has a different shape from the result."),
    "other": ("A tensor has another shape.", "A tensor has a different shape."),
    "of-first": ("Of wide heads two blocks have 64 keys.", "Of course it is."),
    "those": ("Those of whole rows, row by row.", "Those rows are whole."),
    "from-on": ("Rows from row0 on are zeros.", "Rows from row0 to row1 are zeros."),
    "else": ("Else all tiles are copied.", "Everything else is copied."),
    "behind": ("The sum behind it is fused.", "A killed run leaves nothing behind."),
    "former-latter": ("The latter are scaled.", "The last are scaled."),
    "at-once": ("It ends at once.", "All at the same time."),
    "on-its-way": ("Keys on their way.", "Keys in flight."),
    "take": ("The kernel takes any strides.", "A step takes 5 ms."),
    "say-tell": ("The option says the shape.", "The option gives the shape."),
    "come-go": ("The keys come by TMA.", "The gain comes from TMA."),
    "of-its-own": ("A kernel of its own.", "It reads the bytes of its own process."),
    "lie": ("Where the elements lie.", "The result lies between 0 and 1."),
    "alone": ("Read by rank 0 alone.", "A standalone program."),
    "turn": ("Numbers are rounded before they turn.", "It turns out to be fast."),
    "by-turns": ("Measured by turns.", "Measured alternately."),
    "beside": ("The rate beside PyTorch.", "The rate next to PyTorch."),
    "want": ("Asks for tiles.", "Requests tiles."),
    "company": ("The same bits in any company.", "The same bits in any batch."),
    "bits": ("It has the bits of two steps.", "It has 16 bits of mantissa."),
    "as-it-is": ("Read once, as it lies.", "Read once, in place."),
    "text-sequence": ("Many texts at once.", "A text file."),
    "seat": ("There is a seat.", "There is a slot."),
    "chain": ("Such ops are fused into chains.", "By the chain rule."),
    "half-copy": ("f32 for half types.", "Half of the blocks."),
    "planted": ("A planted fault.", "A mutant."),
    "rope": ("Two ropes in one launch.", "Two RoPE kernels in one launch."),
    "heads-to": ("Heads to 128.", "Head size up to 128."),
    "place": ("At fixed places.", "Written in place."),
    "terms": ("f32 as f16 terms.", "In terms of memory."),
    "doors": ("Both kinds of doors.", "Both kinds of listeners."),
    "obstacle": ("The obstacle is null.", "The reason is null."),
    "sums-left": ("The sums left to add.", "The sums remain."),
    "starting": ("Its starting value.", "Its initial value."),
}
FAILED = []


def expect(what, condition):
    if not condition:
        FAILED.append(what)


def rules_in(path, text, folder):
    full = os.path.join(folder, path)
    os.makedirs(os.path.dirname(full) or ".", exist_ok=True)
    with open(full, "w", encoding="utf8") as f:
        f.write(text)
    return {(h.rule, h.line) for h in prose.check_file(folder, path, set(), {r.id for r in prose.RULES})}


def git(folder, *args):
    subprocess.run(["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *args], check=True, stdout=subprocess.DEVNULL)


def run(folder, *args):
    p = subprocess.run([sys.executable, prose.__file__, "--root", folder, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return p.returncode, p.stdout.decode()


with tempfile.TemporaryDirectory() as folder:
    for rule_id, (bad, good) in CASES.items():
        expect(f"{rule_id} reports", (rule_id, 1) in rules_in("a.md", bad + "\n", folder))
        expect(f"{rule_id} spares", (rule_id, 1) not in rules_in("a.md", good + "\n", folder))
        expect(f"{rule_id} in a C++ comment", (rule_id, 2) in rules_in("a.h", f"int x;\n// {bad}\n", folder))
    patterns = {r.id for r in prose.RULES if r.kinds is prose.PROSE}
    expect(f"a case for each rule: {patterns ^ set(CASES)}", patterns == set(CASES))
    # Code is not prose.
    for text in ("`has not`.", "```\nMany texts, but for it.\n```", "    Many texts, but for it.", "<!-- prose: off -->\nMany texts.\n<!-- prose: on -->"):
        expect(f"code: {text}", not rules_in("b.md", "A line.\n\n" + text + "\n", folder))
    expect("a string is no comment", not rules_in("tests/c.cpp", 'f("// many texts");\n', folder))
    expect("allow", not rules_in("d.h", "// Many texts. prose: allow text-sequence\n", folder))
    expect("columns", ("md-columns", 1) in rules_in("e.md", "x" * 121 + "\n", folder))
    expect("no columns in tables", not rules_in("e.md", "| " + "x" * 121 + " |\n", folder))
    expect("help", ("say-tell", 1) in rules_in("tools/t.cpp", 'args.option("a", "N", "the file says how many rows", o.a);\n', folder))
    expect("message", ("none", 2) in rules_in("core/t.cpp", '\n  throw Error("[x] the size is no multiple of 8");\n', folder))
    expect("test name", ("test-name", 1) in rules_in("tests/t_test.cpp", "TEST(Engine, OfWhatIsLeft) {\n", folder))
    expect("identifier", ("identifier", 1) in rules_in("core/u.cpp", "bool rows_alone = false;\n", folder))
    expect("line in a paragraph", ("beside", 3) in rules_in("f.md", "One line\nand another,\nbeside it.\n", folder))
    expect("python", ("beside", 1) in rules_in("g.py", '"""The rate beside it."""\n', folder))
    expect("shell", ("beside", 2) in rules_in("h.sh", "#!/bin/sh\n# The rate beside it.\n", folder))

with tempfile.TemporaryDirectory() as folder:
    git(folder, "init", "-q")
    with open(os.path.join(folder, "a.md"), "w") as f:
        f.write("The rate beside it.\n")
    git(folder, "add", "a.md")
    git(folder, "commit", "-q", "-m", "A subject; of two things, " + "x" * 60)
    code, out = run(folder)
    expect("a hit is status 1", code == 1 and "a.md:1: beside" in out)
    expect("the same twice", run(folder)[1] == out)
    expect("a rule left out", run(folder, "--rules=-beside")[0] == 0)
    expect("an unknown rule", run(folder, "--rules", "nonsense")[0] != 0)
    expect("an unknown file", run(folder, "b.md")[0] == 2)
    with open(os.path.join(folder, "a.md"), "w") as f:
        f.write("The rate beside it. prose: allow beside\n\n" * 30)
    code, out = run(folder)
    expect("30 exemptions", code == 0 and "0 hits, 30 exemptions in 1 files" in out)
    with open(os.path.join(folder, "a.md"), "a") as f:
        f.write("<!-- prose: off -->\n")
    code, out = run(folder)
    expect("31 exemptions", code == 1 and "a.md:61" in out)
    code, out = run(folder, "--commits", "HEAD", "--summary")
    expect("commits", all(x in out for x in ("commit-length", "commit-joined", "commit-mood", "commit-body")))

for f in FAILED:
    print("FAILED", f)
print(f"{len(FAILED)} failed")
sys.exit(1 if FAILED else 0)
