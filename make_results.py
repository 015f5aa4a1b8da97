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
import re
import shlex
import sys
import textwrap
from pathlib import Path

from reporting.figures import fingerprint, read_fingerprint, save
from reporting.logs import BadInput, read_benchmarks, read_io_csv, read_runs, read_study_io, visible
from reporting.page import in_full, make_page
from reporting.tables import code

HERE = Path(__file__).resolve().parent


def stale_files(text, figures, out):
    """Returns the names of files in `out` that are not what the logs give."""
    results = out / "RESULTS.md"
    same = results.exists() and results.read_text(encoding="utf-8") == text
    stale = [] if same else [results.name]
    for name, figure in figures.items():
        path = out / "figures" / f"{name}.png"
        stale += [f"figures/{name}"] if read_fingerprint(path) != fingerprint(figure) else []
    return stale + [f"{path.name} (no longer made)" for path in left_over(figures, out)]


def left_over(figures, out):
    """Returns the figures in `out` that this program made and would not make now."""
    files = sorted((out / "figures").glob("*.png"))
    return [path for path in files if path.stem not in figures and read_fingerprint(path)]


def stale_claims(claims, folder):
    """Returns a line for each script in a folder whose docstring has another claim than `claims`,
    {script: text}."""
    lines = []
    for path in sorted([*folder.glob("imagenet_*.py"), *folder.glob("text_*.py")]):
        docstring = path.read_text(encoding="utf-8").split('"""')[1]
        there = re.search(r"(?ms)^Measured: .*?(?=\n\s*\n|\Z)", docstring)
        claim = claims.get(path.name, "")
        if (there[0].strip() if there else "") != claim:
            what = f"should be in its docstring:\n{claim}" if claim else "is in no log: take it out"
            lines.append(f"{path.name}: what was measured {what}")
    return lines


def parse_args():
    """Returns the options, and the parser."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.error = lambda message: parser.exit(
        2, f"{parser.prog}: error: {visible(str(message))}\n"
    )
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOGS", help="folders of runs, at any depth")
    add("--out", type=Path, help="folder for RESULTS.md and figures/ (here)")
    csvs = {"nargs": 2, "type": Path, "metavar": ("BANDWIDTH", "IOPS")}
    help_ = 'a monitoring system\'s exports: "Time";"Read" in bytes/s; reads/s'
    add("--io-csv", **csvs, help=help_)
    help_ = "fraction, as 0.75, for runs that log none"
    add("--desired-acc", type=float, metavar="FRACTION", help=help_)
    help_ = "print a study, a benchmark or a run in full; or `all`, or `claims` of the scripts"
    one = parser.add_mutually_exclusive_group().add_argument
    one("--show", metavar="NAME", help=help_)
    help_ = "write nothing; status 1 if what stands there is stale"
    one("--check", action="store_true", help=help_)
    args = parser.parse_args()
    if args.desired_acc is not None and not 0 < args.desired_acc <= 1:
        parser.error(f"--desired-acc {args.desired_acc} is not a fraction in (0, 1]")
    return args, parser


def main():
    """Reads the logs; writes RESULTS.md and figures/, or with --check compares them."""
    args, parser = parse_args()
    words = [str(path) for path in args.logs]
    try:
        runs, warnings = read_runs(args.logs, args.desired_acc)
        bench, more = read_benchmarks(args.logs)
        ios, odd = read_study_io(args.logs)
        if args.io_csv:
            ios[""] = read_io_csv(*args.io_csv)
            words += ["--io-csv", *map(str, args.io_csv)]
    except BadInput as error:
        parser.error(error)
    warnings += more + odd
    if not (runs or bench):
        why = f"no run with values under {', '.join(map(str, args.logs))}"
        parser.error("; ".join([f"{why}: give folders of event files", *warnings]))
    for warning in warnings:
        print(f"{parser.prog}: warning: {visible(warning)}", file=sys.stderr)
    words += ["--desired-acc", f"{args.desired_acc:g}"] if args.desired_acc else []
    command = shlex.join(["python", "make_results.py", *words])
    text, figures, claims = make_page(runs, bench, ios, warnings, command)
    claims = {
        script: textwrap.fill(f"Measured: {claim}", 100, break_on_hyphens=False)
        for script, claim in claims.items()
    }
    if args.show is not None:
        shown = in_full(args.show, runs, bench)
        if args.show == "claims":
            shown = "\n".join(claims.values())
        if not shown:
            names = [*{run.study or "runs" for run in runs}, *bench, *(run.name for run in runs)]
            near = [each for each in names if args.show.lower() in each.lower()]
            near += difflib.get_close_matches(args.show, names, n=5, cutoff=0.3) or names
            parser.error(
                f"--show {args.show}: nothing is called so; there are {', '.join(near[:5])}"
            )
        print(shown)
        return
    out = args.out or Path(".")
    there = out / "RESULTS.md"
    if not (args.out or args.check) and there.exists():
        if code(command) not in there.read_text(encoding="utf-8"):
            parser.error("RESULTS.md here is of other logs: give --out FOLDER, or --out . if so")
    if args.check:
        if stale := stale_files(text, figures, out):
            parser.exit(1, f"stale, `make results` mends it: {visible(', '.join(stale))}\n")
        if out.resolve() == HERE and (wrong := stale_claims(claims, HERE)):
            parser.exit(1, "\n".join([*wrong, ""]))
        print(f"RESULTS.md and {len(figures)} figures are what the logs give")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            save(figure, out / "figures" / f"{name}.png")
        for path in left_over(figures, out):
            path.unlink()
        there.write_text(text, encoding="utf-8")
    except OSError as error:
        parser.error(f"--out {out}: {error}")
    print(f"{there} and {len(figures)} figures, from {len(runs)} runs")


if __name__ == "__main__":
    main()
