"""What scripts that `bench --compare` starts have in common. They get a request in each line of standard input and answer in
a line. The first line of output is "ready VERSIONS" or "none REASON"; an answer "-" is what cannot be measured. Needs no
packages."""
import pathlib
import sys
import time


def refuse(reason):
    sys.exit(print(f"none {reason}"))


def note(what, error):
    """Why something is not measured, on standard error."""
    print(f"{pathlib.Path(sys.argv[0]).stem}: {what}{str(error).splitlines()[0]}", file=sys.stderr)


def serve(versions, answer):
    """Answers requests: answer(words) returns text."""
    print(f"ready {versions}", flush=True)
    for line in sys.stdin:
        print(answer(line.split()), flush=True)


def serve_decoding(versions, step_seconds, replay):
    """Answers requests about decoding:

    step TEXTS KEYS           milliseconds of a step in which each text reads one token, with KEYS keys including its own
    trace SEATS P:O P:O …     seconds and steps for texts (tokens of the prompt, tokens to write) that are all there at once
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
    """Of each of so many calls, the last of which is waited for."""
    begin = time.perf_counter()
    for _ in range(count):
        run()
    wait()
    return (time.perf_counter() - begin) / count


def repeated(measure, seconds):
    """What measure() returns, again and again until so many seconds have passed, at least three times."""
    values, end = [], time.perf_counter() + seconds
    while len(values) < 3 or time.perf_counter() < end:
        values.append(measure())
    return values
