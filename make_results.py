"""Turn training logs into figures/ and RESULTS.md: every figure and every number in them.

    python make_results.py logs                             # `make results`
    python make_results.py logs --check      # is what stands there, and in docstrings, of logs/?
    python make_results.py logs --show exchange             # a study, benchmark or run in full
    python make_results.py runs --out my_results            # any runs of these scripts
    python make_results.py LOGS --io-csv bandwidth.csv iops.csv --out FOLDER

LOGS are folders with TensorBoard's event files, or its CSV exports (run-RUN-tag-TAG.csv), at any
depth; a folder of event files is a run. What a run is, its log says ("about"), else its name, as in
Feb12_21-54-28_hal01_resnet50_gpux64_b208_cpu20_optO2. The folders in LOGS that hold runs are
studies, with figures of their own. JSON files that benchmarks/ wrote are tables of RESULTS.md.
Nothing else enters the results: no clock, no font, no machine.
"""

import argparse
import difflib
import shlex
import sys
from pathlib import Path

from reporting.claims import claims, stale_claims
from reporting.draw import draw, is_stale, read_fingerprint
from reporting.page import in_full, make_results
from reporting.read import BadInput, read_io_csv, read_runs, read_study_io
from reporting.report import read_benchmarks
from reporting.text import code, visible


def find_stale(text, figures, out):
    """Returns what in `out` is not what the logs give."""
    results = out / "RESULTS.md"
    same = results.exists() and results.read_text(encoding="utf-8") == text
    stale = [] if same else ["RESULTS.md"]
    stale += [name for name, panels in figures.items() if is_stale(out / name, panels)]
    return stale + [f"{path.relative_to(out)} (no longer made)" for path in left_over(figures, out)]


def left_over(figures, out):
    """Returns the figures in `out` that this program made and would not make now."""
    made = {out / f"{name}.png" for name in figures}
    files = (out / "figures").rglob("*.png")
    return sorted(path for path in files if path not in made and read_fingerprint(path))


def near(name, names):
    """Returns the names most like a name, as text."""
    within = [each for each in names if name.lower() in each.lower()]
    like = difflib.get_close_matches(name, names, n=5, cutoff=0.3)
    return f"there are {', '.join(list(dict.fromkeys([*within, *like]))[:5] or list(names)[:5])}"


def main():
    """Reads the logs; writes RESULTS.md and figures/, or with --check compares them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.error = lambda message: parser.exit(
        2, f"{parser.prog}: error: {visible(str(message))}\n"
    )
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOGS", help="folders of runs, at any depth")
    add("--out", type=Path, help="folder for RESULTS.md and figures/ (here)")
    csvs = {"nargs": 2, "type": Path, "metavar": ("BANDWIDTH", "IOPS")}
    add(
        "--io-csv", **csvs, help='a monitoring system\'s exports: "Time";"Read" in bytes/s; reads/s'
    )
    help_ = "fraction, as 0.75, for runs that log none"
    add("--desired-acc", type=float, metavar="FRACTION", help=help_)
    help_ = "print a study, a benchmark or a run in full; or `all`, or `claims` of the scripts"
    one = parser.add_mutually_exclusive_group().add_argument
    one("--show", metavar="NAME", help=help_)
    help_ = "write nothing; status 1 if what stands there is stale"
    one("--check", action="store_true", help=help_)
    args = parser.parse_args()
    try:
        if args.desired_acc is not None and not 0 < args.desired_acc <= 1:
            raise BadInput(f"--desired-acc {args.desired_acc} is not a fraction in (0, 1]")
        runs, warnings = read_runs(args.logs, args.desired_acc)
        benchmarks, more_warnings = read_benchmarks(args.logs)
        ios, odd = read_study_io(args.logs)
        warnings += more_warnings + odd
        io_csv = read_io_csv(*args.io_csv) if args.io_csv else None
    except BadInput as error:
        parser.error(error)
    words = [str(path) for path in args.logs]
    words += ["--io-csv", *map(str, args.io_csv)] if args.io_csv else []
    words += ["--desired-acc", f"{args.desired_acc:g}"] if args.desired_acc else []
    command = shlex.join(["python", "make_results.py", *words])
    text, figures, sections = make_results(runs, warnings, io_csv, command, benchmarks, ios)
    if not (runs or benchmarks):
        where = ", ".join(map(str, args.logs))
        why = f" ({'; '.join(warnings)})" if warnings else ""
        wanted = "give folders of event files or of run-RUN-tag-TAG.csv"
        parser.error(f"no run with values under {where}: {wanted}{why}")
    for warning in warnings:
        print(f"{parser.prog}: warning: {visible(warning)}", file=sys.stderr)
    if args.show is not None:
        if args.show == "claims":
            sections[args.show] = claims(runs, benchmarks).values()
        if args.show not in [*sections, "all"]:
            parser.error(f"--show {args.show}: nothing is called so; {near(args.show, sections)}")
        print("\n".join(in_full(args.show, runs, sections)))
        return
    out = args.out or Path(".")
    before = out / "RESULTS.md"
    if not (args.out or args.check) and before.exists():
        if code(command) not in before.read_text(encoding="utf-8"):
            parser.error("RESULTS.md here is of other logs: give --out FOLDER, or --out . if so")
    if args.check:
        if stale := find_stale(text, figures, out):
            stale = visible(", ".join(stale))
            parser.exit(1, f"stale, `make results` mends it: {stale}\n")
        here = Path(__file__).resolve().parent
        if out.resolve() == here and (wrong := stale_claims(here, claims(runs, benchmarks))):
            parser.exit(1, "\n".join([*wrong, ""]))
        print(f"RESULTS.md and {len(figures)} figures are what the logs give")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, panels in figures.items():
            if is_stale(out / name, panels):
                draw(panels, out / name)
        for path in left_over(figures, out):
            path.unlink()
        (out / "RESULTS.md").write_text(text, encoding="utf-8")
    except OSError as error:
        parser.error(f"--out {out}: {error}")
    print(f"{out / 'RESULTS.md'} and {len(figures)} figures, from {len(runs)} runs")


if __name__ == "__main__":
    main()
