#!/usr/bin/env python3
"""Checks the claims of docs/architecture.md that can be verified from the sources.

    architecture.py ROOT | --self-test

- The table of folders names every folder and subfolder. It lists the same allowed includes as
  tests/tree/include_direction.sh.
- The list of passes has the order in which compile() last calls them. Each pass is defined in the named file.
- The members of Op that the page names exist.
- The figures are identical to the output of docs/figures/draw.py.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

INCLUDERS = "tests/tree/include_direction.sh"
ALIASES = {"standard library, xxHash": "core", "everything": None}


def body_of(name, source):
    """Returns the body of the function `name` in C++ source, or '' if the source does not define it."""
    match = re.search(r"^[\w:<>*&, ]*\b" + name + r"\([^;{}]*\)[^;{}]*\{\n(.*?)^\}", source, re.M | re.S)
    return match.group(1) if match else ""


def calls_of(name, source, names):
    """Returns the functions that `name` calls, in order. Only functions in `names` are returned."""
    calls = []
    for called in re.findall(r"\b(\w+)\(", body_of(name, source)):
        if called in names:
            calls.append(called)
        elif called != name and body_of(called, source):
            calls += calls_of(called, source, names)
    return calls


def check_passes(page, root, fault):
    passes = re.findall(r"^   ├ (\w+) +(\w+\.(?:cpp|h))", page, re.M)
    if not passes:
        fault("the list of passes is missing")
    source = "".join((root / "core/compile" / name).read_text() for name in ("compile.cpp", "passes.cpp"))
    names = [name for name, _ in passes]
    called = list(dict.fromkeys(reversed(calls_of("compiled", source, names))))[::-1]  # memory is planned more than once
    if called != names:
        fault(f"the passes are {names}, but compile() calls them in the order {called}")
    for name, file in passes:
        if not re.search(r"\b" + name + r"\(", (root / "core/compile" / file).read_text()):
            fault(f"core/compile/{file} has no {name}()")


def check_folders(page, root, fault):
    may = dict(re.findall(r'may\["([\w/]+)"\] = "([\w/ ]+)"', (root / INCLUDERS).read_text()))
    rows = {folder.rstrip("/"): (holds, includes.strip())
            for folder, holds, includes in re.findall(r"^\| `([\w/]+)`[^|]*\|([^|]*)\|([^|]*)\|$", page, re.M)}
    for folder, includes in may.items():
        if folder == "backends":
            continue
        if folder not in rows:
            fault(f"the table of folders has no row for {folder}/")
            continue
        named = rows[folder][1]
        expected = set(includes.split()) - {folder}
        written = set() if folder == "core" else {"ops" if name == "ops' attributes" else name for name in named.split(", ")}
        if written != expected:
            fault(f"{folder}/ may include {sorted(expected)}, but the table has '{named}'")
        inside = {path.name for path in (root / folder).iterdir() if path.is_dir() and any(path.iterdir())}
        for name in sorted(inside):
            if f"`{name}`" not in rows[folder][0] and f"`{name}/`" not in rows[folder][0]:
                fault(f"the row of {folder}/ does not name its subfolder {name}")


def check_members(page, root, fault):
    header = (root / "core/graph/op.h").read_text()
    paragraph = re.search(r"^`Op` \(core/graph/op.h\).*?\n\n", page, re.M | re.S)
    members = re.findall(r"`(\w+)`", paragraph.group(0))[1:] if paragraph else []
    if not members:
        fault("the members of Op are missing")
    for member in members:
        if not re.search(r"\b" + member + r"\b", header):
            fault(f"core/graph/op.h has no {member}")


def check_figures(root, fault):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, root / "docs/figures/draw.py", folder], check=True)
        for drawn in sorted(pathlib.Path(folder).iterdir()):
            kept = root / "docs/figures" / drawn.name
            if not kept.exists() or kept.read_text() != drawn.read_text():
                fault(f"docs/figures/{drawn.name} differs from the output of docs/figures/draw.py")


def check(page, root):
    faults = []
    check_passes(page, root, faults.append)
    check_folders(page, root, faults.append)
    check_members(page, root, faults.append)
    check_figures(root, faults.append)
    return faults


def self_test(root):
    page = (root / "docs/architecture.md").read_text()
    assert not check(page, root), check(page, root)
    for old, new in (("├ lower ", "├ lowered "), ("├ buffers_of ", "├ plan_buffers "), ("| `train/` |", "| `training/` |"),
                     ("| core, ops, autograd |", "| core, ops |"), ("`layers`, ", ""), ("`vjp`", "`backward`")):
        assert old in page, old
        assert check(page.replace(old, new, 1), root), f"not detected: {new}"


ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
if sys.argv[1] == "--self-test":
    self_test(ROOT)
else:
    ROOT = pathlib.Path(sys.argv[1])
    FAULTS = check((ROOT / "docs/architecture.md").read_text(), ROOT)
    print("\n".join(f"docs/architecture.md: {fault}" for fault in FAULTS), end="\n" if FAULTS else "")
    sys.exit(bool(FAULTS))
