#!/usr/bin/env python3
"""Checks that every CUDA kernel ran in the emulator over at least three blocks with unequal work.

usage: kernels.py COVERAGE [--table]

  COVERAGE   the file that programs of the emulator append to, if TG_EMULATED_COVERAGE names it
  --table    print a line for each kernel

A kernel is a __global__ function of backends/cuda, with any template arguments, or the generator of such a function, for
sources that are compiled at run time. It is covered if one launch had at least three blocks (a cluster counts as one) with
different numbers of memory accesses. These numbers differ if the last block is ragged. A grid limited by the number of
multiprocessors has at most one block per item of work, so three blocks are at least three items. In some kernels each
block has one item, and all items have equal size: WHOLE_ITEMS. Such a kernel needs three blocks, and its tests use items
with ragged ends.

exceptions.txt lists at most five exceptions, one per line: file, kernel, reason. The script exits with status 1 if an
unlisted kernel is not covered, or if a listed kernel is covered or does not exist.
"""
import collections
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MOST_EXCEPTIONS = 5
WHOLE_ITEMS = {
    ("backends/cuda/attention/backward/bias_gradient.cu", "sink_gradient"): "a head",
    ("backends/cuda/attention/forward/short_heads_sm80.cu", "attend_short"): "a head",
    ("backends/cuda/attention/forward/short_heads_sm80.cu", "differentiate_short_heads"): "a head",
    ("backends/cuda/attention/split_to_f16.cu", "choose"): "a key head",
    ("backends/cuda/kernels/cumsum.cu", "along_lines"): "a line",
    ("backends/cuda/kernels/norm.cu", "normalize_row_per_block"): "a row",
}
ANONYMOUS = "(anonymous namespace)"


def kernels_of(path):
    """Returns (namespace, name) of each kernel that a source file defines. Generated kernels have no namespace."""
    text = re.sub(r"//.*", lambda m: m.group() if "namespace" in m.group() else "", path.read_text())
    found, spaces = [], []
    token = re.compile(r"^(?:inline )?namespace ?([\w:]*) ?\{|^\}  // namespace|__global__", re.M)
    for m in token.finditer(text):
        if m.group().startswith("}"):
            spaces.pop()
        elif m.group() != "__global__":
            spaces.append(m.group(1) or ANONYMOUS)
        else:
            head = re.sub(r"__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)", "", text[m.end():m.end() + 600])
            if path.suffix == ".cpp":
                name = re.search(r'\) ?(\w+)\(|\) " \+ (name) \+', text[m.end():m.end() + 200])
                found.append(("", name.group(1) or path.stem))
            else:
                found.append(("::".join(spaces), re.match(r"[\s\w]*?(\w+)\s*\(", head).group(1)))
    return found


def sources_of(name):
    """Returns the source files with this name and all files that they include."""
    seen, left = set(), [p for p in ROOT.glob("backends/cuda/**/" + name)]
    while left:
        path = left.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        left += [ROOT / m for m in re.findall(r'#include "(backends/cuda/[^"]+)"', path.read_text())]
    return seen


def plain(symbol):
    """Returns the qualified name of a demangled function, without arguments: tg::cuda::(anonymous namespace)::attend."""
    kept, depth = "", 0
    symbol = symbol.replace(ANONYMOUS, "@")
    for c in symbol:
        depth += (c == "<") - (c == ">")
        if depth == 0 and c not in "<>":
            if c == "(":
                break
            kept += c
    return kept.split(" ")[-1].replace("@", ANONYMOUS)


def functions_of(program):
    """Returns offset → (source file, qualified name) for each function of a program."""
    lines = subprocess.run(["readelf", "-sW", program], check=True, capture_output=True, text=True).stdout.split("\n")
    found, file = {}, ""
    for line in lines:
        cells = line.split()
        if len(cells) < 8 or not cells[0].endswith(":"):
            continue
        if cells[3] == "FILE":
            file = cells[7]
        elif cells[3] == "FUNC":
            found[int(cells[1], 16)] = (file if cells[4] == "LOCAL" else "", cells[7])
    return found


def read_coverage(path):
    """Returns (file, qualified name) → (maximum number of blocks, whether a launch was ragged)."""
    records = collections.defaultdict(list)
    for line in path.read_text().splitlines():
        kernel, blocks, shape, program = line.split(" ", 3)
        records[program].append((kernel, int(blocks), shape == "ragged"))
    found = collections.defaultdict(lambda: (0, False))
    for program, launched in records.items():
        functions = functions_of(program)
        names = {}
        for kernel, _, _ in launched:
            if kernel.startswith("+"):
                names[kernel] = functions.get(int(kernel[1:]), ("", kernel))
        mangled = sorted({symbol for _, symbol in names.values()})
        text = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout
        readable = dict(zip(mangled, text.split("\n")))
        for kernel, blocks, ragged in launched:
            file, symbol = names.get(kernel, ("", ""))
            key = (file, plain(readable[symbol])) if symbol else ("", kernel)
            most, any_ragged = found[key]
            found[key] = max(most, blocks), any_ragged or ragged
    return found


def join(found):
    """Returns (file, name) → (blocks, ragged) for each kernel of the sources."""
    paths = sorted(p for s in ("cu", "cuh", "cpp", "h") for p in ROOT.glob("backends/cuda/**/*." + s))
    defined = [(path, space, name) for path in paths for space, name in kernels_of(path)]
    closures = {}
    covered = {(str(path.relative_to(ROOT)), name): (0, False) for path, _, name in defined}
    for (file, qualified), record in found.items():
        fits = [d for d in defined if qualified == "::".join(filter(None, d[1:]))]
        if file and len(fits) > 1:
            if file not in closures:
                closures[file] = sources_of(file)
            fits = [d for d in fits if d[0] in closures[file]]
        if len(fits) > 1:
            sys.exit(f"{qualified} of {file or 'any file'} is in {', '.join(str(d[0]) for d in fits)}")
        if fits:
            key = (str(fits[0][0].relative_to(ROOT)), fits[0][2])
            blocks, ragged = covered[key]
            covered[key] = max(blocks, record[0]), ragged or record[1]
    return covered


def read_exceptions():
    lines = [line for line in (HERE / "exceptions.txt").read_text().splitlines() if line and not line.startswith("#")]
    return {tuple(line.split(None, 2)[:2]): line.split(None, 2)[2] for line in lines}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    covered, excepted = join(read_coverage(pathlib.Path(sys.argv[1]))), read_exceptions()
    errors = []
    for (file, name), (blocks, ragged) in sorted(covered.items()):
        enough = blocks >= 3 and (ragged or (file, name) in WHOLE_ITEMS)
        if "--table" in sys.argv:
            print(f"{'ok  ' if enough else 'LESS'} {blocks:7} {'ragged' if ragged else 'even  '} {file} {name}")
        if not enough and (file, name) not in excepted:
            errors.append(f"{file}: kernel {name} ran over {blocks} blocks, " +
                          ("which all had the same work: expected a ragged last block" if blocks >= 3 else "expected at least 3"))
        if enough and (file, name) in excepted:
            errors.append(f"{file}: kernel {name} is covered: expected no line for it in exceptions.txt")
    errors += [f"exceptions.txt: there is no kernel {name} in {file}" for file, name in excepted if (file, name) not in covered]
    errors += [f"kernels.py: there is no kernel {name} in {file}" for file, name in WHOLE_ITEMS if (file, name) not in covered]
    if len(excepted) > MOST_EXCEPTIONS:
        errors.append(f"exceptions.txt: {len(excepted)} kernels are listed, expected at most {MOST_EXCEPTIONS}")
    print("\n".join(errors + [f"{len(covered)} kernels, {len(excepted)} exceptions, {len(errors)} errors"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
