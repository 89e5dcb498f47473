"""Shared functions of the scripts that `bench --compare` starts. Each line of standard input is a request, and the answer is one
line. The first line of output is "ready VERSIONS" or "none REASON". The answer "-" means that the request cannot be measured.
This file needs no packages."""
import pathlib
import sys
import time


def refuse(reason):
    sys.exit(print(f"none {reason}"))


def note(what, error):
    """Prints to standard error why a request is not measured."""
    print(f"{pathlib.Path(sys.argv[0]).stem}: {what}{str(error).splitlines()[0]}", file=sys.stderr)


def serve(versions, answer):
    """Answers requests: answer(words) returns a string."""
    print(f"ready {versions}", flush=True)
    for line in sys.stdin:
        print(answer(line.split()), flush=True)


def serve_decoding(versions, step_seconds, replay):
    """Answers requests about decoding:

    step SEQUENCES KEYS       milliseconds of a step in which each sequence reads one token, with KEYS keys including its own
    trace SLOTS P:O P:O …     seconds and steps for sequences (prompt tokens, output tokens) that are all present at the start
    """

    def answer(words):
        what, count, *rest = words
        try:
            if what == "step":
                return f"{1e3 * step_seconds(int(count), int(rest[0])):.6f}"
            return "{} {}".format(*replay(int(count), [tuple(int(n) for n in r.split(":")) for r in rest]))
        except Exception as error:
            note("", error)
            return "-"

    serve(versions, answer)


def seconds_of(run, count=1, wait=lambda: None):
    """Returns the seconds per call of run(), for `count` calls followed by wait()."""
    begin = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - begin) / count


def repeated(measure, seconds):
    """Calls measure() repeatedly for this number of seconds, at least three times, and returns the results."""
    values, end = [], time.perf_counter() + seconds
    while len(values) < 3 or time.perf_counter() < end:
        values.append(measure())
    return values
