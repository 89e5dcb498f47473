#!/usr/bin/env python3
"""Compares the losses of runs of `train` with those of other runs of the same seeds, such as PyTorch's by torch_run.py. Exits
with status 0 if they are the same within the noise of seeds, with 1 if not, and with 2 if they cannot be compared.

The criterion has three parts. All hold for runs that differ only in how they round.

Start: rounding has not grown yet, so in the first 20 steps each pair's losses differ by at most a part of the loss that
depends on the dtype of the run. In f32 this finds other batches, rates, moments, decay or clipping.

Curve: in each window of steps, means over the S seeds differ by at most two standard errors of the difference between means
of S independent runs, 2·σ·√(2/S). σ is the standard deviation between seeds of a window's mean: its square is averaged over
both kinds of runs, the window, and two windows on either side. Pairs share initial weights and batches, so their difference
is smaller than that of independent runs, unless rounding has made them independent.

Validation: the same for the last validation, with the two validations before it."""
import argparse
import statistics
import sys

import run_files

START = 20
# The largest difference at the start, as a part of the loss: half of the unit roundoff of a product's operands, 2^-8 in bf16
# and 2^-11 in tf32, as errors of many tokens cancel; in f32 that of sums of some hundred terms.
START_LIMIT = dict(f32=1e-5, tf32=2**-12, bf16=2**-9)
NEIGHBOURS = 2


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--runs", nargs="+", required=True, metavar="RUN", help="folders of runs of train, a seed each")
    parser.add_argument("--others", nargs="+", required=True, metavar="RUN",
                        help="folders of the other runs, in the same order of seeds")
    parser.add_argument("--window", type=int, default=100, metavar="N", help="steps in a window [100]")
    parser.add_argument("--csv", metavar="FILE", help="write the losses of every step, a column for each run")
    args = parser.parse_args()
    if len(args.runs) != len(args.others) or len(args.runs) < 2:
        parser.error("expected as many --others as --runs, at least 2")
    if args.window < 1:
        parser.error("--window must be at least 1")
    return args


class Curves:
    """A kind of runs: points of their curves, each a list over seeds. ValueError if they cannot be compared."""

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
    """Of the means over seeds at a point of two curves."""

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
    """Prints the largest difference of the first steps. Returns whether it is small enough."""
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
