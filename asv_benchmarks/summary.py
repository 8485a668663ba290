"""Print the ratios that the library promises, each beside its goal, without asv.

    python asv_benchmarks/summary.py [--quick] [--only SECTION]

An asterisk marks a number that misses its goal; n/a is no measurement (see the README).
"""

import argparse
import importlib.util
import sys
import timeit
from functools import partial
from pathlib import Path
from time import perf_counter

if importlib.util.find_spec("conehoyer") is None:  # not installed: take this checkout
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks import bench_bilevel, bench_calls
from benchmarks.common import (
    DISTRIBUTIONS,
    DTYPES,
    EASY,
    KEPT,
    PARAMETERS,
    ROWS,
    SIZES,
    Problem,
    data,
    floor_over_copyto,
    require_processors,
)

import conehoyer

FUNCTIONS = ("project_cai", "project_l1_ball")
EASY_GOALS = dict(zip(SIZES, (2.5, 1.5, 1.3), strict=True))
HARD_GOALS = dict(zip(SIZES, (4.0, 3.0, 3.0), strict=True))


class Report:
    """Prints rows of numbers, each row with its goal, and counts the goals that are met."""

    def __init__(self, quick):
        self.quick = quick
        self.dtypes = ("float64",) if quick else DTYPES
        self.seconds = 0.08 if quick else 0.15  # for one comparison
        self.asked = self.met = 0

    def title(self, text, columns=()):
        print(f"\n{text}")
        if columns:
            print(" " * 52 + "".join(f"{column:>10} " for column in columns))

    def row(self, label, measures, goal=None, at_least=False, form=".2f"):
        """Call each of `measures`; their results are numbers, or Comparisons."""
        print(f"  {label:50}", end="", flush=True)
        references = []
        for measure in measures:
            try:
                value = measure()
            except NotImplementedError:
                print(f"{'n/a':>10} ", end="", flush=True)
                continue
            if not isinstance(value, float):
                references.append(value.reference)
                value = value.ratio
            missed = goal is not None and (value < goal if at_least else value > goal)
            self.asked += goal is not None
            self.met += goal is not None and not missed
            print(f"{value:10{form}}{'*' if missed else ' '}", end="", flush=True)
        if goal is not None:
            print(f"  goal {'>=' if at_least else '<='} {goal:<4g}", end="")
        print(f"  of {1e3 * min(references):.3g} ms" if references else "", flush=True)


def over_floor(report, function, y, kept, threads=1, by_row=False):
    require_processors(threads)
    return Problem(function, y, kept).over_floor(report.seconds, threads, by_row)


def the_floor(report):
    report.title("The floor, bytes per second over np.copyto", [f"{n:,}" for n in SIZES])
    for dtype in DTYPES:
        measures = [partial(floor_over_copyto, n, dtype, report.seconds) for n in SIZES]
        report.row(dtype, measures, 0.8, at_least=True)


def one_worker(report):
    for n in SIZES:
        few = report.quick and n == max(SIZES)
        report.title(f"One worker over the floor, n = {n:,}; nonzeros:", SHARES)
        for distribution in ("gaussian",) if few else DISTRIBUTIONS:
            drawn = data(distribution, n)
            goal = (EASY_GOALS if distribution in EASY else HARD_GOALS)[n]
            for dtype in report.dtypes:
                y = drawn.astype(dtype, copy=False)
                for function in FUNCTIONS:
                    measures = [partial(over_floor, report, function, y, kept) for kept in KEPT]
                    report.row(f"{function}  {distribution}  {dtype}", measures, goal)


def new_data(report):
    for n in SIZES[:2]:
        report.title(f"The same on new data at each call, n = {n:,}; nonzeros:", SHARES)
        for dtype in report.dtypes:
            case = Problem("project_cai", data("gaussian", n, dtype), KEPT[1])
            same = partial(case.floor_over_itself_on_new_data, report.seconds)
            report.row(f"the floor over itself  {dtype}", [same])
        for distribution in EASY:
            drawn = data(distribution, n)
            for dtype in report.dtypes:
                y = drawn.astype(dtype, copy=False)
                for function in FUNCTIONS:
                    measures = [
                        lambda function=function, y=y, kept=kept: Problem(
                            function, y, kept
                        ).over_floor_on_new_data(report.seconds)
                        for kept in KEPT
                    ]
                    report.row(f"{function}  {distribution}  {dtype}", measures, EASY_GOALS[n])


def two_workers(report):
    report.title("Two workers over the floor with two threads; nonzeros:", SHARES)
    cases = {
        "n = 10,000,000": (max(SIZES), False),
        "10,000 rows of 1,000": (ROWS, False),
        "the same, floor row by row": (ROWS, True),
    }
    for name, (shape, by_row) in cases.items():
        for dtype in report.dtypes:
            y = data("gaussian", shape, dtype)
            for function in FUNCTIONS:
                measures = [
                    partial(over_floor, report, function, y, kept, 2, by_row) for kept in KEPT
                ]
                # The stricter floor, row by row, is for information.
                report.row(f"{function}  {name}  {dtype}", measures, None if by_row else 1.5)


def classical(report):
    """Against np.sort, Condat's algorithm and Hoyer's, in float64."""
    drawn = {n: data("gaussian", n) for n in (SIZES[:2] if report.quick else SIZES)}
    y = drawn[1_000_000]

    def over_sort(function, kept):
        return Problem(function, y, kept).over_sort(report.seconds)

    def condat_over_sort(kept):
        problem = Problem("project_l1_ball", y, kept)
        return problem.over_sort_of_magnitudes(report.seconds, method="condat")

    def condat_over_default(n, kept):
        problem = Problem("project_l1_ball", drawn[n], kept)
        return problem.method_over("condat", seconds=report.seconds)

    def alternating_over(function, n, kept):
        problem = Problem("project_hoyer", drawn[n], kept)
        other = Problem(function, drawn[n], kept)
        return problem.method_over("alternating", other, report.seconds)

    report.title("Against the classical algorithms, float64; nonzeros:", SHARES)
    for function in PARAMETERS:
        measures = [partial(over_sort, function, kept) for kept in KEPT]
        report.row(f"{function} over np.sort  1,000,000", measures, form=".3f")
    for n in drawn:
        measures = [partial(condat_over_default, n, kept) for kept in KEPT]
        report.row(f"condat over newton  {n:,}", measures, 8, at_least=True, form=".1f")
    for n in SIZES[:2]:
        for function, name in (("project_hoyer", "cfp"), ("project_cai", "project_cai")):
            measures = [partial(alternating_over, function, n, kept) for kept in KEPT]
            report.row(f"alternating over {name}  {n:,}", measures, 10, at_least=True, form=".1f")
    report.title("condat over np.sort(np.abs(y)), n = 1,000,000, float64")
    for kept, goal in ((0.5, 3.5), (0.01, 2.0)):
        report.row(f"{kept:.0%} nonzeros", [partial(condat_over_sort, kept)], goal)


def matrices(report):
    """A tenth of the groups is kept; at side 256 the call may take 10 µs more."""

    def over_floor(groups, side, dtype, inner, threads):
        require_processors(threads)
        problem = bench_bilevel.Problem(groups, side, dtype, inner)
        result = problem.over_floor(report.seconds, threads)
        if side == 256:
            return result._replace(ratio=(result.call - 1e-5) / result.reference)
        return result

    sides = (256, 1024, 4096) if report.quick else (256, 1024, 2048, 4096, 8192)
    for threads, some in ((1, sides), (2, sides[1:])):
        report.title(
            f"project_bilevel over the floor, {threads} thread(s); side (256: less 10 µs):",
            [f"{side:,}" for side in some],
        )
        for groups in bench_bilevel.GROUPS:
            goal = 1.5 if groups in ("columns", "rows") or threads == 2 else 2.0
            for dtype in report.dtypes:
                for inner in ("linf", "l2"):
                    measures = [
                        partial(over_floor, groups, side, dtype, inner, threads) for side in some
                    ]
                    report.row(f"{groups}  {inner}  {dtype}", measures, goal)
    report.title('project_l1inf_ball, groups="rows", over np.sort of the rows of 1000 × 1000')

    def over_sort(radius):
        case = bench_bilevel.ExactL1Inf()
        case.setup(radius)
        return case.over_sort(report.seconds)

    for radius in bench_bilevel.ExactL1Inf.params[0]:
        report.row(f"radius {radius:g}", [partial(over_sort, radius)], 0.5)


def microseconds(function, n):
    """Time of a whole call that allocates its result: the median of nine."""
    problem = bench_calls.small_problem(function, n)
    timer = timeit.Timer(partial(problem.project, problem.y, problem.parameter))
    return 1e6 * sorted(timer.repeat(9, 2000))[4] / 2000


def calls(report):
    report.title("A whole call, in µs; n:", [f"{n:,}" for n in bench_calls.SMALL])
    for function in PARAMETERS:
        report.row(function, [partial(microseconds, function, n) for n in bench_calls.SMALL])
    report.title("Goals for calls")
    for function in PARAMETERS:
        report.row(f"{function}, n = 100, µs", [partial(microseconds, function, 100)], 10)
    report.row(
        "import conehoyer over NumPy, ms", [lambda: 1e3 * bench_calls.import_over_numpy()], 50
    )
    sizes = bench_calls.FirstCall.params[0]
    report.title("The first call in a new process, in s; n:", [f"{n:,}" for n in sizes])
    report.row("warm cache", [partial(bench_calls.first_call, n, True) for n in sizes], 1)
    if not report.quick:
        report.row("cold cache", [partial(bench_calls.first_call, n, False) for n in sizes])


SHARES = [f"{kept:.1%}" for kept in KEPT]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer cases, shorter runs")
    sections = {
        f.__name__: f
        for f in (the_floor, one_worker, new_data, two_workers, classical, matrices, calls)
    }
    parser.add_argument("--only", choices=sections, help="one section")
    options = parser.parse_args()
    report = Report(options.quick)
    start = perf_counter()
    print(f"conehoyer {conehoyer.__version__} in {Path(conehoyer.__file__).parent}")
    for name, section in sections.items():
        if options.only in (None, name):
            section(report)
    print(
        f"\n{report.met} of {report.asked} numbers meet their goal; {perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
