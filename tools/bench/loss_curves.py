#!/usr/bin/env python3
"""Compares the losses of runs of `train` with the losses of other runs with the same seeds, such as PyTorch's from
torch_run.py. Exits with status 0 if they are the same within the noise between seeds, with 1 if they are not, and with 2 if they
cannot be compared.

The criterion has three parts. All hold for runs that differ only in rounding.

Start: rounding errors have not grown yet, so in the first 20 steps the losses of a pair differ by at most a fraction of the
loss. The fraction depends on the dtype of the run. In f32 this detects different batches, rates, moments, decay or clipping.

Curve: the steps are divided into windows. In each window, the means over the S seeds differ by at most 2·σ·√(2/S),
two standard errors of the difference. σ² is the variance between seeds of a window's mean. It is averaged over both
kinds of runs, the window, and two windows on either side. Pairs share initial weights and batches. Their difference is therefore
smaller than for independent runs, unless rounding has made them independent.

Validation: the last validation is compared like a window. σ² is averaged over it and the two validations before it."""
import argparse
import statistics
import sys

import run_files

START = 20
# The largest relative difference at the start. In tf32 and bf16 it is half the unit roundoff of a GEMM's operands (2^-11 and
# 2^-8), because errors of many tokens cancel. In f32 it is the error of sums of a few hundred terms.
START_LIMIT = dict(f32=1e-5, tf32=2**-12, bf16=2**-9)
NEIGHBOURS = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--runs", nargs="+", required=True, metavar="RUN", help="folders of runs of train, one for each seed")
    parser.add_argument("--others", nargs="+", required=True, metavar="RUN",
                        help="folders of the other runs, with the same seeds in the same order")
    parser.add_argument("--window", type=int, default=100, metavar="N", help="number of steps in a window [100]")
    parser.add_argument("--csv", metavar="FILE", help="file for the losses of every step, with one column per run")
    args = parser.parse_args()
    if len(args.runs) != len(args.others) or len(args.runs) < 2:
        parser.error("expected the same number of --others and --runs, at least 2")
    if args.window < 1:
        parser.error("--window must be at least 1")
    return args


class Curves:
    """The curves of one kind of runs. Each point is a list over seeds. Raises ValueError if the curves cannot be compared."""

    def __init__(self, folders, window):
        all_rows = [run_files.metrics(folder) for folder in folders]
        self.steps = len(all_rows[0])
        for folder, rows in zip(folders, all_rows):
            if len(rows) != self.steps:
                raise ValueError(f"{folder} has {len(rows)} steps, {folders[0]} has {self.steps}")
            if any(row["train_loss"] is None for row in rows):
                raise ValueError(f"{folder} has a loss that is not finite")
        self.losses = [[row["train_loss"] for row in rows] for rows in all_rows]
        self.windows = [[statistics.fmean(losses[begin:begin + window]) for losses in self.losses]
                        for begin in range(0, self.steps, window)]
        self.validated = [[row["step"] for row in rows if row["val_loss"] is not None] for rows in all_rows]
        self.validations = [[rows[step - 1]["val_loss"] for rows in all_rows] for step in self.validated[0]]


class Comparison:
    """Compares the means over seeds at one point of two curves."""

    def __init__(self, name, mine, its, place):
        near = range(max(0, place - NEIGHBOURS), min(len(mine), place + NEIGHBOURS + 1))
        variance = statistics.fmean(statistics.variance(points[i]) for points in (mine, its) for i in near)
        self.name, self.mine, self.its = name, statistics.fmean(mine[place]), statistics.fmean(its[place])
        self.spread, self.difference = variance**0.5, self.mine - self.its
        self.of_pairs = statistics.stdev(a - b for a, b in zip(mine[place], its[place]))
        self.limit = 2 * self.spread * (2 / len(mine[place]))**0.5
        self.holds = abs(self.difference) <= self.limit

    def row(self):
        mark = "" if self.holds else "  beyond"
        return (f"{self.name:<14}{self.mine:9.4f}{self.its:9.4f}{self.difference:+12.5f}{self.limit:10.5f}"
                f"{self.spread:10.5f}{self.of_pairs:10.5f}{mark}")


def compare_start(args, mine, its, dtype):
    """Prints the largest difference in the first steps. Returns whether it is small enough."""
    part, folder, step = max((abs(a - b) / abs(b), folder, step)
                             for folder, x, y in zip(args.runs, mine.losses, its.losses)
                             for step, (a, b) in enumerate(zip(x[:START], y[:START]), 1))
    limit = START_LIMIT[dtype]
    print(f"start         the first {START} steps differ by at most {part:.1e} of the loss ({folder}, step {step}); "
          f"limit {limit:.1e} in {dtype}{'' if part <= limit else '  beyond'}")
    return part <= limit


def compare(args):
    dtype = run_files.options(args.runs[0])["dtype"]
    if dtype not in START_LIMIT:
        raise ValueError(f"{args.runs[0]} is in {dtype}, expected {', '.join(START_LIMIT)}")
    mine, its = Curves(args.runs, args.window), Curves(args.others, args.window)
    validated = mine.validated + its.validated
    if mine.steps != its.steps or any(steps != validated[0] for steps in validated) or not validated[0]:
        raise ValueError("the runs differ in the number of steps, or in the steps with a validation")
    if args.csv:
        write_csv(args, mine, its)
    print(f"{len(args.runs)} pairs of {mine.steps:,} steps, {args.runs[0]} with {args.others[0]} first")
    starts_same = compare_start(args, mine, its, dtype)
    print(f"{'steps':<14}{'runs':>9}{'others':>9}{'difference':>12}{'limit':>10}{'seeds ±':>10}{'pairs ±':>10}")
    windows = []
    for place in range(len(mine.windows)):
        begin = place * args.window
        name = f"{begin + 1}–{min(begin + args.window, mine.steps)}"
        windows.append(Comparison(name, mine.windows, its.windows, place))
        print(windows[-1].row())
    last = Comparison("validation", mine.validations, its.validations, len(mine.validations) - 1)
    print(last.row())
    largest = max(windows, key=lambda w: abs(w.difference))
    print(f"largest       {abs(largest.difference):.5f} in steps {largest.name}; "
          f"within their limits are {sum(w.holds for w in windows)} of {len(windows)} windows"
          f"{'' if last.holds else ', but not the last validation'}")
    same = starts_same and all(w.holds for w in windows) and last.holds
    print("verdict       " + ("the same within the noise of seeds" if same else "different"))
    return same


def write_csv(args, mine, its):
    with open(args.csv, "x", encoding="utf-8") as file:
        file.write(",".join(["step", *args.runs, *args.others]) + "\n")
        for step, losses in enumerate(zip(*mine.losses, *its.losses), 1):
            file.write(",".join([str(step), *(f"{loss:.7g}" for loss in losses)]) + "\n")


def main():
    args = arguments()
    try:
        sys.exit(0 if compare(args) else 1)
    except (ValueError, OSError) as error:
        print(f"loss_curves: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
