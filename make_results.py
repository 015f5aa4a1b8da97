"""Turn training logs into figures/ and RESULTS.md: every figure and every measured number in them.

    python make_results.py logs                             # `make results`
    python make_results.py logs --check      # is what stands there, and in docstrings, of logs/?
    python make_results.py logs --show exchange             # a study, benchmark or run in full
    python make_results.py runs --out my_results            # any runs of these scripts
    python make_results.py LOGS --io-csv bandwidth.csv iops.csv --out FOLDER

LOGS are folders with TensorBoard's event files, at any depth; a folder of event files is a run.
The folder may have any name, since the log says what was trained ("about"). Only the logs of
logs/v100_imagenet, which are another project's, do not say it, and are read by names such as
Feb12_21-54-28_hal01_resnet50_gpux64_b208_cpu20_optO2. The folders in LOGS that hold runs are
studies, with figures of their own; study.json beside the runs says whose they are. JSON files that
benchmarks/ wrote are tables of RESULTS.md. Nothing else enters the results: no clock, no font, no
machine.
"""

import argparse
import difflib
import re
import shlex
import signal
import sys
import textwrap
from pathlib import Path

from reporting.figures import draw, fingerprint, read_fingerprint
from reporting.lessons import make_lessons
from reporting.logs import BadInput, read_benchmarks, read_io_csv, read_runs, read_study_io, visible
from reporting.page import make_page
from reporting.tables import code, in_full

HERE = Path(__file__).resolve().parent


def stale_claims(claims):
    """Returns a line for each script whose docstring has another claim than {script: claim}."""
    lines = []
    for path in sorted([*HERE.glob("imagenet_*.py"), *HERE.glob("text_*.py")]):
        docstring = path.read_text(encoding="utf-8").split('"""')[1]
        there = re.findall(r"(?ms)^(Measured: .*?)\s*(?:\n\s*\n|\Z)", docstring)
        wanted = [claims[path.name]] if path.name in claims else []
        if there != wanted:
            claim = wanted[0] if wanted else "nothing, since no log is of it"
            lines.append(f"{path.name}: what was measured should be in its docstring:\n{claim}")
    return lines


def parse_args():
    """Returns (the options, the parser)."""
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.split("\n\n")[0])
    line = f"{parser.prog}: error: {{}}\n"
    parser.error = lambda error: parser.exit(2, line.format(visible(str(error))))
    add, csvs = parser.add_argument, ("BANDWIDTH", "IOPS")
    add("logs", nargs="+", type=Path, metavar="LOGS", help="folders of runs, at any depth")
    add("--out", type=Path, help="folder for RESULTS.md and figures/ (default: here)")
    help_ = 'a monitoring system\'s exports: "Time";"Read" in bytes/s; reads/s'
    add("--io-csv", nargs=2, type=Path, metavar=csvs, help=help_)
    help_ = "accuracy, as 0.75, for runs that log none"
    add("--desired-acc", type=float, metavar="FRACTION", help=help_)
    one = parser.add_mutually_exclusive_group().add_argument
    help_ = "print a study, a benchmark or a run in full; or `all`, or `claims` of the scripts"
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
    words += ["--io-csv", *map(str, args.io_csv)] if args.io_csv else []
    words += ["--desired-acc", f"{args.desired_acc:g}"] if args.desired_acc else []
    command = shlex.join(["python", "make_results.py", *words])
    try:
        runs, warnings = read_runs(args.logs, args.desired_acc)
        bench, more = read_benchmarks(args.logs)
        ios = read_study_io(args.logs) | ({"": read_io_csv(*args.io_csv)} if args.io_csv else {})
    except BadInput as error:
        parser.error(error)
    warnings = [visible(warning) for warning in warnings + more]
    if not (runs or bench):
        parser.error("; ".join([f"no run or benchmark in {' '.join(words)}", *warnings]))
    for warning in warnings:
        print(f"{parser.prog}: warning: {warning}", file=sys.stderr)
    text, figures, claims = make_page(runs, bench, ios, warnings, command)
    claims = {
        script: textwrap.fill(f"Measured: {claim}", 100, break_on_hyphens=False)
        for script, claim in claims.items()
    }
    if args.show is not None:
        shown = "\n".join(claims.values()) if args.show == "claims" else ""
        names = [*{run.study or "runs" for run in runs}, *bench, *(run.name for run in runs)]
        near = difflib.get_close_matches(args.show, names, n=5, cutoff=0.3) or names[:5]
        if not (shown := shown or in_full(args.show, runs, bench)):
            parser.error(
                f"--show {args.show}: nothing is called so; did you mean {', '.join(near)}?"
            )
        print(shown)
        return
    out, paths = args.out or Path("."), {}
    for name, panels in figures.items():
        paths[out / "figures" / f"{name}.png"] = panels
    stale = [path for path in paths if read_fingerprint(path) != fingerprint(paths[path])]
    made = [path for path in (out / "figures").glob("*.png") if read_fingerprint(path)]
    left_over = [path for path in made if path not in paths]
    page = out / "RESULTS.md"
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    texts = {page: text}
    if out.resolve() == HERE and (lessons := make_lessons(runs, bench)):
        texts[out / "docs" / "lessons.md"] = lessons
    if before and not args.out and code(command) not in before:
        parser.error("RESULTS.md here is of other logs: give --out FOLDER, or --out . if so")
    if args.check:
        stale += [
            path for path in texts if not path.exists() or path.read_text("utf-8") != texts[path]
        ]
        if names := [path.name for path in [*stale, *left_over]]:
            command += f" --out {shlex.quote(str(args.out))}" if args.out else ""
            parser.exit(1, f"stale, `{command}` mends it: {', '.join(names)}\n")
        if out.resolve() == HERE and (wrong := stale_claims(claims)):
            parser.exit(1, "\n".join([*wrong, ""]))
        print(f"RESULTS.md and {len(figures)} figures are what the logs give")
        return
    try:
        for path in stale:
            draw(paths[path], path)
        for path in left_over:
            path.unlink()
        out.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        parser.error(f"--out {out}: {error}")
    print(f"{page} and {len(figures)} figures, from {len(runs)} runs")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` has read enough
    main()
