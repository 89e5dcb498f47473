#!/usr/bin/env python3
"""Makes a copy of the tree that contains every mutant of tests/mutants/faults, switched off.

usage: `plant.py SOURCE_DIR TARGET_DIR`
       `plant.py --check SOURCE_DIR`        only checks that the source lines and the named tests of every mutant exist

An entry of faults/*.txt has this form:

    17 backends/cpu/kernels/online.h; op softmax; tests softmax cross_entropy
    the maximum of a chunk is taken from its first two vectors
    | for (; i + 2 * W <= @{n => 2 * W}@; i += 2 * W)

- The first line has a number and the file. Optionally, it names the op that gradcheck checks first, and tests
  to run next. A test may name a case, softmax:Softmax.LongRows. In this case, only the named cases run, and
  each of them must fail.

- The second line describes the bug.

- The other lines are source lines, unchanged except for @{right => wrong}@ around the mutated text. Indentation is ignored.
  An empty line "|" begins a further position. The lines must occur exactly once in the file.

- The right text is an expression, or statements if it ends in ";". Then the wrong text may be empty.

In the copy, an expression becomes (tg::mutant(17) ? (wrong) : (right)), and statements become an if. A single
build contains all mutants, and the environment variable TG_MUTANT=17 switches one on. If source lines no
longer exist, the script fails, so the list must be updated with the code. Each case of tests/bugs_of_others
must have the address of a report in its comment, and a mutant must name the case. --check verifies this, too.
"""
import pathlib
import re
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
COPIED = ["autograd", "backends", "cmake", "core", "examples", "io", "nn", "ops", "parallel", "tests", "tools", "train", "CMakeLists.txt",
          "tilegrad.h", "version.h"]
MARK = re.compile(r"@\{(.*?) => ?(.*?)\}@", re.S)


class Fault:
    def __init__(self, number, file, options, where):
        self.number, self.file, self.where = number, file, where
        self.op, self.tests, self.cases, self.text, self.places = "", [], [], "", []
        for option in options:
            name, _, value = option.strip().partition(" ")
            if name == "op":
                self.op = value
            elif name == "tests":
                for test in value.split():
                    name, _, case = test.partition(":")
                    self.tests.append(name)
                    self.cases += [(name, case)] if case else []
                if self.cases and len(self.cases) < len(self.tests):
                    sys.exit(f"{where}: mutant {number} names cases for only some of its tests")
            else:
                sys.exit(f"{where}: '{name}' is neither op nor tests")


def read_faults(folder=HERE / "faults"):
    """Returns all entries, by number."""
    faults = {}
    for path in sorted(folder.glob("*.txt")):
        fault = None
        for at, line in enumerate(path.read_text().split("\n"), 1):
            where = f"{path.name}:{at}"
            if not line or line.startswith("#"):
                continue
            if line.startswith("|"):
                line = line[1:].removeprefix(" ")
                if not fault:
                    sys.exit(f"{where}: source lines before the first mutant")
                if not line:
                    fault.places.append([])
                else:
                    fault.places = fault.places or [[]]
                    fault.places[-1].append(line)
            elif re.match(r"\d+ ", line):
                head, *options = line.split(";")
                number, file = head.split()
                if int(number) in faults:
                    sys.exit(f"{where}: mutant {number} is already at {faults[int(number)].where}")
                fault = faults[int(number)] = Fault(int(number), file, options, where)
            elif fault and not fault.places:
                fault.text += (" " if fault.text else "") + line.strip()
            else:
                sys.exit(f"{where}: not an entry: {line}")
    for fault in faults.values():
        if not fault.text or not fault.places:
            sys.exit(f"{fault.where}: mutant {fault.number} needs a description and source lines")
    return dict(sorted(faults.items()))


def pattern_of(text):
    """Returns a regular expression for the lines, which ignores indentation."""
    first, *more = text.split("\n")
    return r"\s*\n\s*".join([re.escape(first)] + [re.escape(line.lstrip()) for line in more])


def find(fault, lines, source):
    """Returns the range of the right text in the source, the right text, and the wrong text."""
    text = "\n".join(lines).lstrip()
    marks = list(MARK.finditer(text))
    if len(marks) != 1:
        sys.exit(f"{fault.where}: the lines of mutant {fault.number} need one @{{right => wrong}}@:\n{text}")
    right, wrong = marks[0].groups()
    if not right.strip():
        sys.exit(f"{fault.where}: mutant {fault.number} replaces nothing:\n{text}")
    parts = text[:marks[0].start()], right, text[marks[0].end():]
    found = list(re.finditer("({})({})({})".format(*map(pattern_of, parts)), source))
    if len(found) != 1:
        sys.exit(f"{fault.where}: the lines of mutant {fault.number} occur {len(found)} times in {fault.file}, expected once; "
                 f"the list has to follow the code:\n{text}")
    return found[0].start(2), found[0].end(2), found[0].group(2), wrong


def planted(file, source, faults):
    """Returns the source of a file with its mutants."""
    spans = {}  # mutants with the same range are tested one after the other
    for fault in faults:
        for lines in fault.places:
            start, end, right, wrong = find(fault, lines, source)
            spans.setdefault((start, end), (right, []))[1].append((fault.number, wrong))
    begun = len(source)
    for (start, end), (right, wrongs) in sorted(spans.items(), reverse=True):
        if end > begun:
            sys.exit(f"{file}: mutants {', '.join(str(n) for n, _ in wrongs)} overlap with the next one")
        begun = start
        text = right
        for number, wrong in wrongs:
            if right.rstrip().endswith(";"):
                text = f"if (::tg::mutant({number})) {{ {wrong} }} else {{ {text} }}"
            else:
                text = f"(::tg::mutant({number}) ? ({wrong}) : ({text}))"
        source = source[:start] + text + source[end:]
    return f'#include "{HERE}/mutant.h"\n#line 1\n{source}'


def write(path, text):
    """Writes a file. If the file already has this text, does not write it, so that a build does not recompile
    it."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def by_files(faults, source_dir):
    files = {}
    for fault in faults.values():
        if not (source_dir / fault.file).is_file():
            sys.exit(f"{fault.where}: mutant {fault.number} is in {fault.file}, which does not exist")
        files.setdefault(fault.file, []).append(fault)
    return files


def copied_files(source_dir):
    """Returns the files of a copy of the tree, as relative paths, without tests/mutants/faults."""
    for name in COPIED:
        root = source_dir / name
        for path in [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file()):
            file = path.relative_to(source_dir)
            if "__pycache__" not in file.parts and file.parts[:2] != ("tests", "mutants"):
                yield file


def copy_changed(path, to):
    """Copies a file unless it exists, so that its objects stay up to date."""
    if not to.exists() or to.read_bytes() != path.read_bytes():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)


def plant(source_dir, target_dir):
    source_dir, target_dir = pathlib.Path(source_dir), pathlib.Path(target_dir)
    faults, kept = read_faults(), set()
    by_file = by_files(faults, source_dir)
    for file in copied_files(source_dir):
        kept.add(file)
        if str(file) in by_file:
            write(target_dir / file, planted(str(file), (source_dir / file).read_text(), by_file[str(file)]))
        else:
            copy_changed(source_dir / file, target_dir / file)
    mutant = pathlib.Path("core/base/mutant.cpp")
    write(target_dir / mutant, (HERE / "mutant.cpp").read_text().replace('"mutant.h"', f'"{HERE}/mutant.h"'))
    kept.add(mutant)
    for path in target_dir.rglob("*"):
        if path.is_file() and path.relative_to(target_dir) not in kept:
            path.unlink()
    return faults


CASE = re.compile(r"((?:^//.*\n)*)^TEST(?:_F)?\((\w+),\s*(\w+)\)", re.M)


def test_cases(source_dir):
    """Returns the cases of tests/FOLDER/NAME_test.cpp. Maps (NAME, "Suite.Case") to the file and the comment
    above the case."""
    cases = {}
    for path in sorted((source_dir / "tests").rglob("*_test.cpp")):
        for comment, suite, case in CASE.findall(path.read_text()):
            cases[path.stem.removesuffix("_test"), f"{suite}.{case}"] = path, comment
    return cases


def check_cases(faults, source_dir):
    """Checks that the cases that mutants name exist. Also checks that each case of tests/bugs_of_others has
    an address and a mutant."""
    cases, named = test_cases(source_dir), set()
    for fault in faults.values():
        for case in fault.cases:
            if case not in cases:
                sys.exit(f"{fault.where}: there is no case {':'.join(case)}")
            named.add(case)
    for case, (path, comment) in cases.items():
        if path.parent.name == "bugs_of_others":
            if "https://" not in comment:
                sys.exit(f"{path}: the comment of {case[1]} has no address of a report")
            if case not in named:
                sys.exit(f"{path}: no mutant names {':'.join(case)}")


def test_names(source_dir):
    """Returns the names of CTest's tests. Names that CMake computes are omitted. run.py runs tests by name,
    so names must be unique."""
    tests = source_dir / "tests"
    names = [path.stem.removesuffix("_test") for path in tests.rglob("*_test.cpp")]
    names += ["emulated_" + name for name in names if name.startswith("cuda_")]
    declared = re.compile(r"add_test\(NAME (\w+)\s|^(?:emulated_test|hopper_test|on_several)\((emulated_\w+)\s", re.M)
    for path in tests.rglob("CMakeLists.txt"):
        names += [a or b for a, b in declared.findall(path.read_text())]
    for name in names:
        if names.count(name) > 1:
            sys.exit(f"two tests are named {name}")
    return names


def check(source_dir):
    faults, source_dir = read_faults(), pathlib.Path(source_dir)
    for file, own in by_files(faults, source_dir).items():
        planted(file, (source_dir / file).read_text(), own)
    names = test_names(source_dir)
    for fault in faults.values():
        for name in fault.tests:
            if name not in names:
                sys.exit(f"{fault.where}: there is no test {name}")
    check_cases(faults, source_dir)
    return faults


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if sys.argv[1] == "--check":
        print(f"the source lines of {len(check(sys.argv[2]))} mutants exist")
        sys.exit()
    print(f"{len(plant(sys.argv[1], sys.argv[2]))} mutants inserted in {sys.argv[2]}")
