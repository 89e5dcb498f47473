#!/usr/bin/env python3
"""Draws random mutants from the product code, compiles them into one build, and reports which of them the tests kill.

usage: random_run.py --random N [--seed S] [--rooms ops,cpu,...] [--build DIR] [--jobs N] [--resume] [--budget SECONDS]
                     [--widest UNITS] [--draw-only] [--json FILE]

    --random N         number of mutants in each room, which is a part of the code.
    --seed S           seed of the draw (default: from the commit's hash).
    --rooms LIST       rooms to draw from: ops cpu compiler engine layers io training ranks gradcheck cuda
                       (default: all except cuda).
    --build DIR        build folder (default: build-random).
    --jobs N           number of parallel processes (default: number of cores).
    --resume           continue an interrupted run, with the same mutants, the build, the coverage and the existing results.
    --budget SECONDS   limit for the tests that run for one mutant by itself. Later tests run for several surviving mutants at the
                       same time (default: 10).
    --widest UNITS     draw no mutants in headers that more than UNITS files include. The build needs a fraction of the time, but
                       these headers are not measured (default: draw from all).
    --draw-only        print the mutants of the draw, without compiling any.
    --json FILE        also write the report to this file (default: DIR/report.json)

`tests/mutants/places.py` finds the code to change and defines which code is excluded. If a mutant does not
compile, or if this machine does not compile its file, the next mutant of the draw replaces it. Room cuda
needs the GPU emulator, and building it is slow.

Every test case runs once without a mutant, to find which mutants it reaches. Then TG_MUTANT=number switches
each mutant on. The cases that reach it run, fastest first, until a case fails or needs 10 times its processor
time. If mutants survive for --budget seconds, groups of 24 mutants run the remaining tests together. Before
grouping, mutants are sorted by the time of their tests. If a test fails, the halves of the group run again
until the killed mutants are found.

The report counts survivors by room, with 95 % intervals (Wilson). Equivalent mutants
(tests/mutants/equivalent.txt) are not counted as mutants; the report gives their number. The result depends
only on the commit, the seed and N, unless tests depend on time. Exits with status 1 if a mutant survives.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import itertools
import json
import math
import os
import pathlib
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv

import places
import plant

HERE = plant.HERE
ROOT = HERE.parent.parent
PACKAGES = ["tree-sitter==0.26.1", "tree-sitter-cpp==0.23.4"]
# Checks of the tree and of documents cannot kill a mutant, nor can tests with a separate build. Gradcheck of
# all ops with 20 seeds would need half of the time, so each op is checked with one seed.
NOT_ASKED = re.compile(r"include_direction|where_to_find|public_headers|count_tests|kernel_symbols|installed_package|mutants_|random_mutants|"
                       r"^docs_|^examples$|^example_(?!batches)|ops_reference|fuzz|bench|hostile_names|gradcheck_plugin|"
                       r"gradcheck_(?:baseline|avx2|avx512)$|start_without_avx|emulated_gradcheck")
TOOLS = ["train", "generate", "evaluate", "inspect", "tokens", "export", "gradcheck", "launch", "joined_rank", "held_fsync", "hostile"]
GROUP = 24


def say(text):
    print(time.strftime("%H:%M:%S"), text, flush=True)


def need_parser(folder):
    """Makes tree_sitter importable. Exits with status 77 if that fails."""
    try:
        places.parser()
        return
    except ImportError:
        pass
    made = folder / "parser"
    site = made / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    if not (site / "tree_sitter_cpp").exists():
        try:
            venv.create(made, with_pip=True)
            subprocess.run([made / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
                            "--timeout", "20", *PACKAGES], check=True)
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"the parser {' '.join(PACKAGES)} cannot be installed: {error}", file=sys.stderr)
            sys.exit(77)
    sys.path.insert(0, str(site))
    places.parser()


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout.strip()


# Draws mutants and checks that they compile.

class Draw:
    """The mutants of a room, in the order of the draw. Numbers are unique over all rooms."""

    def __init__(self, root, room, seed, index, parse):
        self.room, self.sources, found = room, {}, []
        for file in places.product_files(root, room):
            self.sources[file] = (root / file).read_bytes()
            found += places.find(file, self.sources[file], parse)
        self.places = len(found)
        self.order = places.order_of_draw(found, seed, room)
        self.next_number = 1 + index * 6000
        self.mutants = []  # all drawn mutants, in order
        self.dropped = {}  # number: reason

    def kept(self):
        return [m for m in self.mutants if m.number not in self.dropped]

    def extend(self, count):
        """Draws until `count` mutants are kept, or none is left."""
        kept = self.kept()
        while len(kept) < count:
            drawn = next(self.order, None)
            if drawn is None:
                return
            place, change = drawn
            mutant = self.mutant(place, change)
            if any(mutant.file == m.file and places.crosses(mutant, m) for m in kept):
                continue
            self.mutants.append(mutant)
            kept.append(mutant)

    def mutant(self, place, change):
        self.next_number += 1
        return places.Mutant(self.next_number - 1, self.room, place, change, self.sources[place.file])

    def draw_again(self, numbers):
        """Restores the mutants that an earlier run kept."""
        while self.next_number <= max(numbers, default=0):
            mutant = self.mutant(*next(self.order))
            if mutant.number in numbers:
                self.mutants.append(mutant)


def write_planted(target, sources, mutants):
    """Returns the files with mutants: {file: Lines}."""
    by_file, lines = {}, {}
    for m in mutants:
        by_file.setdefault(m.file, []).append(m)
    for file, source in sources.items():
        if file not in by_file:
            path = target / file
            if path.read_bytes() != source:
                path.write_bytes(source)
            continue
        text, ranges = places.planted(source, by_file[file])
        lines[file] = places.Lines(text, ranges)
        head = f'#include "{target}/random_switch.h"\n#line 1\n'.encode()
        path = target / file
        if path.read_bytes() != head + text:
            path.write_bytes(head + text)
    return lines


LOCATION = re.compile(r"^(?:In file included from |\s+from )?([^\s:][^:]*):(\d+):(\d+):\s*(.*)$")


def culprits(output, folder, target, lines):
    """Returns the mutants with compiler errors as {number: message}, and the errors without a mutant."""
    found, others, context = {}, [], []
    entries = []
    for line in output.split("\n"):
        match = LOCATION.match(line)
        if not match or line.startswith(("In file included", "  ")):
            continue
        file, at, column, text = match[1], int(match[2]), int(match[3]), match[4]
        try:
            file = str((folder / file).resolve().relative_to(target))
        except ValueError:
            pass
        number = lines[file].mutant_at(at, column) if file in lines else None
        kind = "error" if text.startswith(("error:", "fatal error:")) else "note" if text.startswith("note:") else "context"
        entries.append((kind, number, f"{file}:{at}: {text}"))
    for i, (kind, number, text) in enumerate(entries):
        if kind != "error":
            continue
        # The message for an error in a template shows the expression with its switch.
        suspects = [*map(int, re.findall(r"tg::mutant\((\d+)\)", text)), number]
        for k, n, _ in reversed(entries[:i]):
            if k != "context":
                break
            suspects.append(n)
        for k, n, _ in entries[i + 1:]:
            if k != "note":
                break
            suspects.append(n)
        suspect = next((s for s in suspects if s is not None), None)
        if suspect is None:
            others.append(text)
        else:
            found.setdefault(suspect, text)
    return found, others


class Units:
    """Returns the compiled units, and the files that each unit reads."""

    def __init__(self, target, build):
        self.target, self.commands, self.known, self.read_by = target, {}, {}, collections.Counter()
        for entry in json.loads((build / "compile_commands.json").read_text()):
            file = str(pathlib.Path(entry["file"]).resolve())
            if file.startswith(str(target) + "/") and not file.startswith(str(build) + "/"):
                file = file[len(str(target)) + 1:]
                if not file.startswith(("tests/", "tools/bench", "examples/")):
                    self.commands.setdefault(file, []).append(entry)

    def included(self, file):
        if file not in self.known:
            self.known[file] = found = set()
            path = self.target / file
            if path.exists():
                for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(errors="replace"), re.M):
                    name = name.removeprefix("tilegrad/")
                    for candidate in (name, os.path.normpath(os.path.join(os.path.dirname(file), name))):
                        if (self.target / candidate).is_file():
                            found.add(candidate)
                            break
        return self.known[file]

    def closure(self, file):
        seen, stack = set(), [file]
        while stack:
            f = stack.pop()
            if f not in seen:
                seen.add(f)
                stack += self.included(f)
        return seen

    def readers(self, file):
        """Returns the number of units that read a file."""
        if not self.read_by:
            for unit in self.commands:
                self.read_by.update(self.closure(unit))
        return self.read_by[file]

    def cover(self, files):
        """Returns a few units that together read all of the files, and the files that no unit reads."""
        chosen = {f for f in files if f in self.commands}
        closures = {u: self.closure(u) for u in self.commands}
        read = set().union(*(closures[u] for u in chosen)) if chosen else set()
        alone = []
        for file in sorted(set(files) - read):
            if file in read:
                continue
            readers = [u for u in self.commands if file in closures[u]]
            if not readers:
                alone.append(file)
                continue
            unit = min(readers, key=lambda u: (-len(closures[u] & set(files)), len(closures[u]), u))
            chosen.add(unit)
            read |= closures[unit]
        return sorted(chosen), alone

    def run(self, entry, *options):
        """Runs the compiler on one unit with further options, and returns its output."""
        words = shlex.split(entry["command"])
        while words and os.path.basename(words[0]) in ("ccache", "sccache"):
            words.pop(0)
        out = words.index("-o")
        del words[out:out + 2]
        words.remove("-c")
        environment = dict(os.environ, LC_ALL="C")
        command = [*words, "-w", "-fdiagnostics-column-unit=byte", "-fdiagnostics-color=never", "-fno-diagnostics-show-caret", *options]
        done = subprocess.run(command, cwd=entry["directory"], env=environment, capture_output=True, text=True, errors="replace")
        return done.stdout, done.stderr

    def failing_alone(self, unit, mutants, source):
        """Returns the unit's mutants that do not compile: {number: message}. The compiler's message may name
        no line of the unit, such as one about a virtual function of a template."""
        path = self.target / unit
        part = path.with_suffix(".alone" + path.suffix)
        entry = self.commands[unit][-1]
        entry = dict(entry, command=entry["command"].replace(entry["file"], str(part)))
        found = {}
        for m in mutants:
            part.write_bytes(f'#include "{self.target}/random_switch.h"\n#line 1\n'.encode() + places.planted(source, [m])[0])
            error = re.search(r"error: .*", self.run(entry, "-fsyntax-only")[1])
            if error:
                found[m.number] = f"{unit}: {error[0]}"
        part.unlink(missing_ok=True)
        return found

    def compiled_numbers(self, files):
        """Returns the numbers of the mutants in these files that a unit compiles. Preprocessor conditions
        exclude some mutants."""
        units, numbers = self.cover(files)[0], set()
        for unit in units:
            for entry in self.commands[unit]:
                numbers |= {int(n) for n in re.findall(r"tg::mutant\((\d+)\)", self.run(entry, "-E", "-P")[0])}
        return numbers


def select(draws, count, units, target, jobs, widest):
    """Drops mutants that do not compile, until each draw has `count` mutants or no more locations."""
    sources = {f: s for d in draws for f, s in d.sources.items()}
    checked = {}  # file: its mutants when it last compiled
    for attempt in range(40):
        for draw in draws:
            draw.extend(count if attempt > 5 else count + max(2, count // (2 + 2 * attempt)) if len(draw.kept()) < count else 0)
        if widest:
            for draw in draws:
                wide = [m for m in draw.kept() if units.readers(m.file) > widest]
                draw.dropped.update({m.number: "many units read the header" for m in wide})
                while wide:
                    draw.extend(len(draw.kept()) + len(wide))
                    wide = [m for m in draw.kept() if units.readers(m.file) > widest]
                    draw.dropped.update({m.number: "many units read the header" for m in wide})
        mutants = [m for d in draws for m in d.kept()]
        by_file = collections.defaultdict(list)
        for m in mutants:
            by_file[m.file].append(m.number)
        changed = [f for f in sorted(by_file) if checked.get(f) != by_file[f]]
        if not changed:
            break
        lines = write_planted(target, sources, mutants)
        chosen, unread = units.cover(changed)
        all_lines, dropped = lines, {}
        for m in mutants:
            if m.file in unread:
                dropped[m.number] = "no unit of this build reads the file"
        in_branches = {m.file for m in mutants if m.in_branch and m.file in changed and m.file not in unread}
        compiled = units.compiled_numbers(sorted(in_branches)) if in_branches else set()
        for m in mutants:
            if m.file in in_branches and m.in_branch and m.number not in compiled:
                dropped[m.number] = "a preprocessor condition excludes it"

        def check(unit):
            entry = units.commands[unit][-1]  # the object for the best instruction set
            return unit, entry, units.run(entry, "-fsyntax-only")[1]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for unit, entry, output in pool.map(check, chosen):
                found, others = culprits(output, pathlib.Path(entry["directory"]), target, all_lines)
                if others and not found:
                    found = units.failing_alone(unit, [m for m in mutants if m.file == unit], sources.get(unit))
                    if not found:
                        say(f"{unit}: errors in no mutant:\n  " + "\n  ".join(others[:5]))
                dropped.update(found)
        numbers = {m.number for m in mutants}
        for draw in draws:
            own = {m.number for m in draw.mutants}
            draw.dropped.update({n: why for n, why in dropped.items() if n in own & numbers})
        for f in changed:
            if not any(n in dropped for n in by_file[f]):
                checked[f] = by_file[f]
        say(f"attempt {attempt + 1}: {len(chosen)} units checked, {len(dropped)} mutants dropped, "
            f"{', '.join(f'{d.room} {len(d.kept())}' for d in draws)}")
    for draw in draws:  # mutants drawn in excess
        for m in draw.kept()[count:]:
            draw.dropped[m.number] = "drawn in excess"


# The build.

def copy_tree(target, product):
    """Writes the tree without mutants. Adds the switch and the tests' listener."""
    kept = set()
    for file in plant.copied_files(ROOT):
        kept.add(file)
        if not (target / file).exists() or str(file) not in product:  # write_planted() writes the others
            plant.copy_changed(ROOT / file, target / file)
    for name, to in (("random_switch.h", "random_switch.h"), ("random_listener.cpp", "random_listener.cpp"),
                     ("random_switch.cpp", "core/base/mutant.cpp")):
        text = (HERE / name).read_text().replace('"random_switch.h"', f'"{target}/random_switch.h"')
        plant.write(target / to, text)
        kept.add(pathlib.Path(to))
    for name in ("tests/CMakeLists.txt", "tests/gpu_emulator/CMakeLists.txt"):
        to = target / name
        text = (ROOT / name).read_text()
        library = "" if "gpu" in name else (
            f"add_library(mutants_listener OBJECT EXCLUDE_FROM_ALL {target}/random_listener.cpp)\n"
            f"target_link_libraries(mutants_listener PRIVATE GTest::gtest)\n")
        more = library + ("get_property(programs DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)\nlist(FILTER programs INCLUDE REGEX \"_test$\")\n"
                          "foreach(program ${programs})\n  target_sources(${program} PRIVATE $<TARGET_OBJECTS:mutants_listener>)\nendforeach()\n")
        first = "set(CMAKE_CXX_COMPILER_LAUNCHER \"\")\nset(CMAKE_DISABLE_PRECOMPILE_HEADERS OFF)\n"
        if "gpu" in name:  # its kernels compile slowest and have no precompiled headers
            first = "set(CMAKE_CXX_COMPILER_LAUNCHER ccache)\n" if shutil.which("ccache") else ""
        plant.write(to, first + text + more)
    for path in sorted(target.rglob("*")):
        file = path.relative_to(target)
        if path.is_file() and file.parts[0] != "build" and file not in kept:
            path.unlink()


def configure(target, jobs):
    options = ["-DTILEGRAD_CUDA=OFF", "-DTILEGRAD_INSTALL=OFF", "-DCMAKE_BUILD_TYPE=Release"]
    if shutil.which("ccache"):  # files without mutants are the same as in other builds
        options += ["-DTILEGRAD_UNITY=OFF", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    subprocess.run(["cmake", "-S", target, "-B", target / "build", "-G", "Ninja", *options], check=True, stdout=subprocess.DEVNULL)


def build(draws, count, units, target, jobs, rooms, widest):
    """Compiles and links everything. Mutants that do not compile are dropped and replaced."""
    sources = {f: s for d in draws for f, s in d.sources.items()}
    goals = (["quick_tests", *TOOLS] if rooms != ["cuda"] else []) + (["emulated_ci"] if "cuda" in rooms else [])
    for attempt in range(12):
        lines = write_planted(target, sources, [m for d in draws for m in d.kept()])
        done = subprocess.run(["cmake", "--build", target / "build", "-j", str(jobs), "--target", *goals, "--", "-k", "0"],
                              env=dict(os.environ, LC_ALL="C", CXXFLAGS=""), capture_output=True, text=True, errors="replace")
        (target / "build/output.txt").write_text(done.stdout + done.stderr)
        if done.returncode == 0:
            return
        found, others = culprits(done.stdout + done.stderr, target / "build", target, lines)
        if not found:
            sys.exit(f"the build fails without an error in a mutant (see {target}/build/output.txt):\n" + "\n".join(others[:10]))
        say(f"build {attempt + 1}: {len(found)} mutants do not compile: {', '.join(f'{n} ({w})' for n, w in sorted(found.items())[:10])}")
        for draw in draws:
            own = {m.number for m in draw.mutants}
            draw.dropped.update({n: w for n, w in found.items() if n in own})
            again = [m.number for m in draw.mutants if draw.dropped.get(m.number) == "drawn in excess"]
            for number in again[:max(0, count - len(draw.kept()))]:
                del draw.dropped[number]
        if any(len(d.kept()) < count for d in draws):
            select(draws, count, units, target, jobs, widest)
    sys.exit("the build does not converge")


# The tests.

RUNS = itertools.count()


def kill_run(run):
    """Kills the processes that a test run has not ended, including processes of other sessions."""
    mark = f"TG_MUTANT_RUN={run}".encode()
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:  # the process has ended, or belongs to another user
            pass


class Test:
    """A test of CTest or a call of gradcheck, with the cases of a GoogleTest program."""

    def __init__(self, name, command, environment=(), emulated=False):
        self.name, self.command, self.environment, self.emulated = name, command, dict(environment), emulated
        self.cases = {}  # name: (seconds, mutants that it reaches)
        self.always = set()  # mutants that are reached before the first case
        self.seconds, self.reached = 0.0, set()

    def ask_about(self, numbers):
        """Removes all mutants except these."""
        self.reached &= numbers
        self.always &= numbers
        self.cases = {n: (s, r & numbers) for n, (s, r) in self.cases.items()}

    def has_cases(self):
        return os.path.basename(self.command[0]).endswith("_test")

    def seconds_for(self, numbers):
        """Returns the total time of the cases that reach one of these mutants."""
        if not self.cases or numbers & self.always:
            return self.seconds
        return 0.05 + sum(s for s, r in self.cases.values() if r & numbers)

    def command_for(self, numbers):
        """Returns the cases that reach one of the mutants. Without `numbers`, returns all cases."""
        command = list(self.command)
        if not self.cases:
            return command
        if numbers is not None and not numbers & self.always:
            chosen = [n for n, (_, r) in self.cases.items() if r & numbers]
            if len(chosen) < len(self.cases):
                command = [c for c in command if not c.startswith("--gtest_filter")] + ["--gtest_filter=" + ":".join(chosen)]
        return command + ["--gtest_fail_fast", "--gtest_brief=1"]

    def run(self, command, environment, seconds):
        """Returns the reason if the command fails, otherwise None. Also returns the seconds."""
        run = f"{os.getpid()}-{next(RUNS)}"
        environment = {**os.environ, **self.environment, **environment, "TG_MUTANT_RUN": run}
        environment.pop("GTEST_OUTPUT", None)
        processor, wall = int(5 + 10 * seconds), 40 + 6 * seconds
        limited = ["sh", "-c", f'ulimit -c 0; ulimit -t {processor}; exec "$@"', "sh", *command]
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as place, open(f"{place}/out", "w+", errors="replace") as out:
            process = subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=place, env=environment,
                                       start_new_session=True)
            try:
                code = process.wait(wall)
            except subprocess.TimeoutExpired:
                code = None
            kill_run(run)
            process.wait()
            out.seek(0)
            text = out.read()
        took = time.monotonic() - start
        if code is None:
            return f"did not end in {wall:.0f} s", took
        if code in (0, 77):  # 77: skipped, because a requirement is missing
            return None, took
        failed = re.search(r"^\[  FAILED  \] ([\w/.]+)", text, re.M)
        return failed.group(1) if failed else f"signal {-code}" if code < 0 else f"exit {code}", took

    def count(self):
        """Runs without a mutant and finds which mutants are reached. Returns the reason if it fails."""
        with tempfile.TemporaryDirectory() as place:
            path, cases = pathlib.Path(place) / "reached", pathlib.Path(place) / "cases"
            path.write_bytes(bytes(1 << 16))
            environment = {"TG_MUTANT_COVERAGE": str(path)}
            if self.has_cases():
                environment["TG_MUTANT_CASES"] = str(cases)
            why, self.seconds = self.run(self.command, environment, 200)
            if why:
                return why
            if cases.exists():
                for line in cases.read_text().split("\n"):
                    if not line:
                        continue
                    name, seconds, numbers = line.split("\t")
                    reached = {int(n) for n in numbers.split()}
                    if name:
                        self.cases[name] = (float(seconds), reached)
                    else:
                        self.always |= reached
                    self.reached |= reached
            self.reached |= {i for i, byte in enumerate(path.read_bytes()) if byte}
            # Mutants that were reached after the last case. Also mutants of a case that replaced its process,
            # because their record was lost.
            self.always |= self.reached - set().union(self.always, *(r for _, r in self.cases.values()))
        return None

    def catches(self, numbers, everything):
        """Returns the reason if the test fails with these mutants, otherwise None."""
        command = self.command_for(None if everything else numbers)
        seconds = self.seconds if everything else self.seconds_for(numbers)
        environment = {"TG_MUTANT": ",".join(map(str, sorted(numbers)))}
        why = self.run(command, environment, seconds)[0]
        if why and (why.startswith("did not end") or not self.cases):  # perhaps the machine was only busy
            why = self.run(command, environment, seconds)[0]
        return why


def list_tests(build, rooms):
    """Returns CI's tests for code of these rooms. Tests on the emulated GPU run CUDA code, and all other
    tests run other code."""
    tests = []
    for config in ([[]] if rooms != ["cuda"] else []) + ([["-C", "emulated", "-L", "^emulated_ci$"]] if "cuda" in rooms else []):
        listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *config], check=True, capture_output=True)
        for test in json.loads(listed.stdout)["tests"]:
            name = test["name"]
            if NOT_ASKED.search(name) or "command" not in test or any(t.name == name for t in tests):
                continue
            if not config and "emulat" in name:
                continue
            variables = next((p["value"] for p in test.get("properties", []) if p["name"] == "ENVIRONMENT"), [])
            if os.path.exists(test["command"][0]):
                tests.append(Test(name, test["command"], [v.split("=", 1) for v in variables], bool(config)))
    checks = {"tools/gradcheck": ("--quick",)} if rooms != ["cuda"] else {}
    if "cuda" in rooms:  # as in tools/dev emulated-gpu
        checks["tests/gpu_emulator/emulated_gradcheck"] = ("--quick", "--backend", "cuda", "--dtypes", "f32,bf16", "--views", "contiguous,sliced")
    for program, arguments in checks.items():
        ops = subprocess.run([build / program, "--list"], check=True, capture_output=True, text=True).stdout
        for op in [line.split()[0] for line in ops.split("\n") if re.match(r"\w+\s+\d", line)]:
            tests.append(Test(f"{pathlib.Path(program).name} --op {op}", [str(build / program), *arguments, "--op", op], (), "emulated" in program))
    return tests


def count_all(tests, store, jobs, stamp):
    """Measures coverage and times of all tests, and stores them in a file for resumed runs."""
    known = json.loads(store.read_text()) if store.exists() else {}
    if known.get("stamp") != stamp:
        known = {"stamp": stamp}
    broken = []

    def one(test):
        if test.name in known:
            return test, None
        return test, test.count() and test.count()  # tries again, because the machine may have been busy
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for test, why in pool.map(one, sorted(tests, key=lambda t: t.name)):
            if why:
                broken.append((test, why))
                say(f"without a mutant, {test.name} fails ({why}): it is skipped")
            elif test.name in known:
                k = known[test.name]
                test.seconds, test.reached, test.always = k["seconds"], set(k["reached"]), set(k["always"])
                test.cases = {n: (s, set(r)) for n, (s, r) in k["cases"].items()}
            else:
                known[test.name] = {"seconds": test.seconds, "reached": sorted(test.reached), "always": sorted(test.always),
                                    "cases": {n: (s, sorted(r)) for n, (s, r) in test.cases.items()}}
                store.write_text(json.dumps(known))
    return [t for t in tests if all(t is not b for b, _ in broken)], [t.name for t, _ in broken]


def catch_alone(number, tests, budget):
    """Returns the test that kills a mutant within the budget, or None. Also returns the tests that ran
    completely."""
    spent, ran = 0.0, []
    for test in sorted((t for t in tests if number in t.reached), key=lambda t: t.seconds_for({number})):
        seconds = test.seconds_for({number})
        if spent + seconds > budget and spent:
            break
        spent += seconds
        why = test.catches({number}, False)
        if why:
            return test.name + ("" if "gradcheck --op" in test.name else f": {why}"), ran
        if test.command_for({number}) == test.command_for(None):
            ran.append(test.name)
    return None, ran


def catch_together(numbers, tests, passed, note):
    """Runs the remaining tests for mutants that survived the first tests. note(number, test or None) receives
    each result."""
    alive = set(numbers)

    def find(test, suspects):
        if not test.catches(suspects, True):
            return
        if len(suspects) == 1:
            number = next(iter(suspects))
            alive.discard(number)
            note(number, test.name)
            return
        ordered = sorted(suspects)
        find(test, set(ordered[::2]))
        find(test, set(ordered[1::2]))
    for test in sorted(tests, key=lambda t: t.seconds):
        suspects = {n for n in alive if n in test.reached and test.name not in passed.get(n, ())}
        if suspects:
            find(test, suspects)
    for number in sorted(alive):
        note(number, None)


# The report.

def wilson(successes, count):
    """Returns the 95 % confidence interval of a share."""
    if count == 0:
        return 0.0, 1.0
    z, share = 1.959964, successes / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def report(about, mutants, results, reached, equivalents):
    rooms, survivors = {}, []
    for m in mutants:
        if m.number not in results:
            continue
        row = rooms.setdefault(m.room, collections.Counter())
        if results[m.number]:
            row["caught"] += 1
        elif m.key() in equivalents:
            row["equivalent"] += 1
        else:
            row["reached" if m.number in reached else "not reached"] += 1
            survivors.append(m)
    rows, total = [], collections.Counter()
    for room in [r for r in places.ROOMS if r in rooms]:
        total.update(rooms[room])
        rows.append((room, rooms[room]))
    rows.append(("all", total))
    text = [f"Random mutants of {about['commit']}, seed {about['seed']}, {about['count']} in each room", "",
            "| room | mutants | caught | survivors reached | not reached | equivalent | survivors | 95 % interval |", "|---|---|---|---|---|---|---|---|"]
    table = {}
    for room, c in rows:
        counted = c["caught"] + c["reached"] + c["not reached"]
        alive = c["reached"] + c["not reached"]
        low, high = wilson(alive, counted)
        table[room] = {"mutants": counted + c["equivalent"], "caught": c["caught"], "reached": c["reached"], "not_reached": c["not reached"],
                       "equivalent": c["equivalent"], "share": alive / counted if counted else 0, "low": low, "high": high}
        text.append(f"| {room} | {counted + c['equivalent']} | {c['caught']} | {c['reached']} | {c['not reached']} | {c['equivalent']} | "
                    f"{100 * alive / max(1, counted):.1f} % | {100 * low:.1f} to {100 * high:.1f} % |")
    everything = sum(total.values())
    text.append("")
    text.append(f"Equivalent: {total['equivalent']} of {everything} ({100 * total['equivalent'] / max(1, everything):.1f} %, at most 10 %)")
    if about["widest"]:
        text.append(f"Excluded: headers that more than {about['widest']} files include")
    if about.get("broken"):
        text.append(f"Tests that fail without a mutant and were skipped: {', '.join(about['broken'])}")
    for m in survivors:
        text += ["", f"{m.number} {m.file}:{m.line} {m.kind}, {'reached' if m.number in reached else 'not reached'}", m.text()]
    about = dict(about, rooms=table, survivors=[
        {"number": m.number, "room": m.room, "file": m.file, "line": m.line, "kind": m.kind, "reached": m.number in reached, "diff": m.text()}
        for m in survivors])
    return "\n".join(text) + "\n", about, len(survivors)


def main():
    options = argparse.ArgumentParser(usage=__doc__.replace("%", "%%"))
    options.add_argument("--random", type=int, required=True)
    options.add_argument("--seed")
    options.add_argument("--rooms", default=",".join(r for r in places.ROOMS if r != "cuda"))
    options.add_argument("--build", default=str(ROOT / "build-random"))
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--resume", action="store_true")
    options.add_argument("--budget", type=float, default=10)
    options.add_argument("--widest", type=int, default=0)
    options.add_argument("--draw-only", action="store_true")
    options.add_argument("--json")
    given = options.parse_args()
    rooms = given.rooms.split(",")
    for room in rooms:
        if room not in places.ROOMS:
            options.error(f"there is no room {room}; the rooms are {' '.join(places.ROOMS)}")
    folder = pathlib.Path(given.build).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    need_parser(folder)
    commit = git("rev-parse", "HEAD")
    seed = given.seed if given.seed is not None else str(int(commit[:12], 16))
    rules = hashlib.sha256((HERE / "places.py").read_bytes()).hexdigest()[:12]
    about = {"commit": commit, "rules": rules, "seed": seed, "count": given.random, "rooms": rooms, "widest": given.widest}
    if git("status", "--porcelain", "--untracked-files=no", *sorted({n for r in rooms for n in places.ROOMS[r]})):
        say("the product code differs from the commit")
    parse = places.parser()
    draws = [Draw(ROOT, room, seed, list(places.ROOMS).index(room), parse) for room in places.ROOMS if room in rooms]
    if given.draw_only:
        for draw in draws:
            draw.extend(given.random)
            for m in draw.mutants:
                print(f"{m.number} {m.file}:{m.line} {m.kind}\n{m.text()}")
        return 0
    target = folder / "planted"
    target.mkdir(exist_ok=True)
    store = folder / "random.json"
    kept = json.loads(store.read_text()) if given.resume and store.exists() else {}
    if kept and kept["about"] != about:
        sys.exit(f"{store} has the results of another run: {kept['about']}")
    say("places: " + ", ".join(f"{d.room} {d.places}" for d in draws))
    if kept:
        for draw in draws:
            draw.draw_again(set(kept["mutants"][draw.room]))
    else:
        copy_tree(target, {f for d in draws for f in d.sources})
        configure(target, given.jobs)
        units = Units(target, target / "build")
        select(draws, given.random, units, target, given.jobs, given.widest)
        say("building")
        build(draws, given.random, units, target, given.jobs, rooms, given.widest)
        kept = {"about": about, "mutants": {d.room: [m.number for m in d.kept()] for d in draws}, "results": {}, "passed": {}}
        store.write_text(json.dumps(kept))
    mutants = [m for d in draws for m in d.kept()]
    say(f"{len(mutants)} mutants are built; counting the mutants that each test reaches")
    tests = list_tests(target / "build", rooms)
    stamp = json.dumps(kept["mutants"])
    tests, about["broken"] = count_all(tests, folder / "coverage.json", given.jobs, stamp)
    for test in tests:
        test.ask_about({m.number for m in mutants if (m.room == "cuda") == test.emulated})
    reached = set().union(*(t.reached for t in tests))
    say(f"{len(tests)} tests, {sum(len(t.cases) for t in tests)} cases; {sum(m.number in reached for m in mutants)} mutants are reached")
    results = {int(n): r for n, r in kept["results"].items()}
    passed = {int(n): p for n, p in kept["passed"].items()}
    for m in mutants:
        if m.number not in reached:
            results[m.number] = None

    def save():
        kept.update(results={str(n): r for n, r in results.items()}, passed={str(n): p for n, p in passed.items()})
        store.write_text(json.dumps(kept))
    by_number = {m.number: m for m in mutants}

    def alone(m):
        return m, catch_alone(m.number, tests, given.budget)
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        # Rooms alternate, so that even an interrupted run covers all of them.
        nth = {m.number: i for d in draws for i, m in enumerate(d.kept())}
        waiting = [m for m in sorted(mutants, key=lambda m: nth[m.number]) if m.number not in results and m.number not in passed]
        for future in concurrent.futures.as_completed([pool.submit(alone, m) for m in waiting]):
            m, (by, ran) = future.result()
            if by:
                results[m.number] = by
            else:
                passed[m.number] = ran
            say(f"{'caught ' if by else 'passed '} {m.number:5} {m.file}:{m.line} {m.kind} [{by}]")
            save()
        width = {n: sum(t.seconds for t in tests if n in t.reached) for n in passed if n not in results}
        waiting = sorted(width, key=lambda n: (-width[n], n))
        groups = [waiting[i:i + GROUP] for i in range(0, len(waiting), GROUP)]
        say(f"{len(waiting)} mutants survived their first tests; the rest runs in {len(groups)} groups")

        found = queue.SimpleQueue()

        def together(group):
            catch_together(group, tests, passed, lambda number, by: found.put((number, by)))
        running = [pool.submit(together, g) for g in groups]
        for future in running:
            future.add_done_callback(lambda f: found.put((None, f)))
        while running:
            number, by = found.get()
            if number is None:
                by.result()
                running.remove(by)
                continue
            results[number] = by
            m = by_number[number]
            say(f"{'caught  ' if by else 'SURVIVED'} {number:5} {m.file}:{m.line} {m.kind} [{by}]")
            save()
    equivalents = places.read_equivalents(HERE / "equivalent.txt")
    text, full, survivors = report(about, mutants, results, reached, equivalents)
    full["results"] = {str(m.number): {"file": m.file, "line": m.line, "kind": m.kind, "diff": m.text(), "by": results.get(m.number)} for m in mutants}
    pathlib.Path(given.json or folder / "report.json").write_text(json.dumps(full, indent=1))
    (folder / "report.txt").write_text(text)
    print(text)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
