#!/usr/bin/env python3
"""Switches on each mutant of tests/mutants/faults, and runs gradcheck and then the tests until one of them kills it.

usage: run.py [--only 17,20-29] [--near | --cases] [--build DIR] [--jobs N] [--table FILE]

    --only NUMBERS   only these mutants (default: all).
    --near           only gradcheck --op and the entry's tests, which is fast, for new entries.
    --cases          only entries that name cases of tests, such as tests/bugs_of_others. Builds only these tests.
    --build DIR      build folder (default: build-mutants).
    --jobs N         number of parallel processes (default: number of cores).
    --table          also write the table of docs/gradcheck.md. With --only, also from the results of earlier runs.

Builds once, with -DTILEGRAD_MUTANTS=ON. First everything must pass without a mutant. Then each mutant is
switched on with TG_MUTANT=number. The checks run in this order: gradcheck --op (the entry's op), the entry's
tests, gradcheck --all --quick, and all other tests, fastest first. If a check takes much longer with a mutant
than without, the mutant is killed. If an entry names cases, only these cases run, each by itself. The mutant
is killed if all of them fail. Exits with status 1 if a mutant survives. Mutants in backends/cuda run on the
emulator, with the entry's tests and the other tests that CI runs there.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

import plant

ROOT = plant.HERE.parent.parent
# These tests cannot kill a mutant. They check the tree, documents or the compiler, or they have a separate
# build.
NOT_ASKED = re.compile(r"include_direction|where_to_find|^architecture(_catches_faults)?$|unity_names|public_headers|count_tests|kernel_symbols|installed_package|"
                       r"emulat|^docs_|^examples$|^example_(?!batches)|ops_reference|fuzz|bench|gradcheck_(all|baseline|avx2|avx512|plugin)")
NO_GRADIENTS = ("io/", "tools/", "nn/generation/", "nn/optimizers/", "train/")  # not run by gradcheck


class Check:
    def __init__(self, name, command, environment=()):
        self.name, self.command, self.seconds = name, command, 60.0
        self.is_emulated = bool(environment)  # only emulated tests have variables
        self.environment = dict(variable.split("=", 1) for variable in environment)

    def run(self, fault):
        """Returns the reason if the check fails with the mutant, or None if it passes."""
        environment = dict(os.environ, **self.environment, TG_MUTANT=str(fault))
        environment.pop("GTEST_OUTPUT", None)
        limit = 30 + 15 * self.seconds
        with tempfile.TemporaryDirectory() as place, open(f"{place}/out", "w+", errors="replace") as out:
            process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=place,
                                       env=environment, start_new_session=True)
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"did not end within {limit:.0f} s"
            out.seek(0)
            text = out.read()
        if code in (0, 77):  # 77: skipped, because a requirement is missing
            return None
        failed = re.search(r"^\[  FAILED  \] ([\w/.]+)", text, re.M)
        return failed.group(1) if failed else f"signal {-code}" if code < 0 else f"exit {code}"


def is_cuda(fault):
    return fault.file.startswith("backends/cuda/") and not fault.file.startswith("backends/cuda/schedule/")


def say(text):
    print(text, flush=True)


def listed_tests(folder, *options):
    listed = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1", *options], check=True, capture_output=True)
    return json.loads(listed.stdout)["tests"]


def build_emulated(folder, jobs):
    """Returns the tests of the emulated GPU that CI runs, by name."""
    subprocess.run(["cmake", "--build", folder, "-j", str(jobs), "--target", "emulated_ci"], check=True)
    tests = {}
    for test in listed_tests(folder, "-C", "emulated", "-L", "^emulated_ci$"):
        properties = {p["name"]: p["value"] for p in test["properties"]}
        tests[test["name"]] = Check(test["name"], [*test["command"], "--gtest_fail_fast", "--gtest_brief=1"],
                                    properties.get("ENVIRONMENT", ()))
    return tests


def build(folder, jobs, only_tests):
    """Returns CTest's tests to run, by name, and gradcheck. If only_tests is not empty, only these tests are
    built."""
    configure = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DTILEGRAD_MUTANTS=ON", "-DTILEGRAD_CUDA=OFF"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    tools = ["train", "generate", "evaluate", "inspect", "tokens", "export", "gradcheck", "launch", "joined_rank"]
    targets = [f"{name}_test" for name in only_tests] or ["quick_tests", *tools]
    subprocess.run(["cmake", "--build", folder, "-j", str(jobs), "--target", *targets], check=True)
    tests = {}
    for test in listed_tests(folder):
        if test["name"] in tests:
            sys.exit(f"two tests are named {test['name']}: only one of them would run")
        if only_tests and test["name"] not in only_tests:
            continue
        if not NOT_ASKED.search(test["name"]) and "command" in test:
            command = test["command"]
            if command[0].endswith("_test"):
                command = command + ["--gtest_fail_fast", "--gtest_brief=1"]
            tests[test["name"]] = Check(test["name"], command)
    gradcheck = next(pathlib.Path(folder).resolve().glob("**/tools/gradcheck"), None)
    return tests, str(gradcheck)


def time_all(checks, folder, jobs):
    """Measures the time of each check without a mutant. All must pass. The result is stored for later runs of
    the same build."""
    store = pathlib.Path(folder) / "seconds.json"
    library = next(pathlib.Path(folder).glob("**/libtilegrad.a"))
    if store.exists() and store.stat().st_mtime > library.stat().st_mtime:
        seconds = json.loads(store.read_text())
        if all(check.name in seconds for check in checks):
            for check in checks:
                check.seconds = seconds[check.name]
            return

    def once(check):
        start = time.monotonic()
        why = check.run(0)
        check.seconds = time.monotonic() - start
        return check, why
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        broken = [f"{check.name} ({why})" for check, why in pool.map(once, checks) if why]
    if broken:
        sys.exit(f"these fail without a mutant: {', '.join(broken)}")
    store.write_text(json.dumps({check.name: check.seconds for check in checks}, indent=1))


def catch(fault, tests, gradcheck, all_ops, near):
    """Describes the check that kills a mutant, or returns None if it survives."""
    if fault.cases:
        for name, case in fault.cases:
            check = Check(name, [*tests[name].command, f"--gtest_filter={case}"])
            check.seconds = tests[name].seconds
            if not check.run(fault.number):
                return None
        return ", ".join(f"{name}: {case}" for name, case in fault.cases)
    asked, emulated = [], is_cuda(fault)
    tests = {name: test for name, test in tests.items() if name in fault.tests or test.is_emulated == emulated}
    if fault.op and not emulated:
        asked.append(Check(f"gradcheck --op {fault.op}", [gradcheck, "--op", fault.op, "--quick"]))
    asked += [tests[name] for name in fault.tests]
    if near:
        tests = {name: tests[name] for name in fault.tests}
    elif not emulated and not fault.file.startswith(NO_GRADIENTS):
        asked.append(all_ops)
    rest = sorted((t for n, t in tests.items() if n not in fault.tests), key=lambda t: t.seconds)
    for check in asked + rest:
        why = check.run(fault.number)
        if why:
            return check.name if "gradcheck --" in check.name else f"{check.name}: {why}"
    return None


def chosen(faults, text):
    if not text:
        return list(faults.values())
    numbers = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return [fault for number, fault in faults.items() if number in numbers]


def write_table(path, faults, results):
    missing = [str(n) for n in faults if str(n) not in results]
    if missing:
        sys.exit(f"no result for mutants {', '.join(missing)}: run them first")
    rows = ["| | file | fault | caught by |", "|---|---|---|---|"]
    for number, fault in faults.items():
        cell = (results[str(number)] or "**nothing**").replace("|", "\\|")
        rows.append(f"| {number} | `{fault.file}` | {fault.text} | {cell} |")
    path.write_text("\n".join(rows) + "\n")


def main():
    options = argparse.ArgumentParser(usage=__doc__)
    options.add_argument("--only", default="")
    options.add_argument("--near", action="store_true")
    options.add_argument("--cases", action="store_true")
    options.add_argument("--build", default=str(ROOT / "build-mutants"))
    options.add_argument("--jobs", type=int, default=os.cpu_count())
    options.add_argument("--table", type=pathlib.Path)
    given = options.parse_args()
    faults = plant.read_faults()
    if given.cases:
        faults = {number: fault for number, fault in faults.items() if fault.cases}
    to_try = chosen(faults, given.only)
    few = sorted({name for fault in to_try for name in fault.tests}) if given.cases else []
    tests, gradcheck = build(given.build, given.jobs, few)
    if any(is_cuda(fault) for fault in to_try):
        tests |= build_emulated(given.build, given.jobs)
    for fault in to_try:
        for name in fault.tests:
            if name not in tests and not is_cuda(fault):
                sys.exit(f"{fault.where}: there is no test {name}")
    all_ops = Check("gradcheck --all", [gradcheck, "--all", "--quick"])
    time_all([*tests.values(), *([] if given.cases else [all_ops])], given.build, given.jobs)
    store = pathlib.Path(given.build) / "mutants.json"
    results = json.loads(store.read_text()) if given.only and store.exists() else {}
    survivors = []

    def one(fault):
        start = time.monotonic()
        by = catch(fault, tests, gradcheck, all_ops, given.near)
        return fault, by, time.monotonic() - start
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(one, f) for f in to_try]):
            fault, by, seconds = future.result()
            results[str(fault.number)] = by
            say(f"{'caught  ' if by else 'SURVIVED'} {fault.number:4}  {fault.text} [{by}] {seconds:.0f} s")
            if not by:
                survivors.append(fault.number)
            store.write_text(json.dumps(results, indent=1))
    if given.table:
        write_table(given.table, faults, results)
    done = len(to_try)
    say(f"{done - len(survivors)} of {done} mutants killed" +
        (f"; survivors: {', '.join(map(str, sorted(survivors)))}" if survivors else ""))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
