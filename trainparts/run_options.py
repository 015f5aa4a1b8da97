"""The options of a run: when it ends, its folder, its device; and options in files, @FILE.

Use it to give another script the options that these scripts have, with their help and their checks.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from trainparts import option_types

# The options that decide when a run ends: a run that has ended stays so unless they change.
ENDS_BY = ("epochs", "desired", "patience", "budget_hours", "best")


class Parser(argparse.ArgumentParser):
    """Has the names of options that a run may change, which a script's parse_args() sets."""

    free: list[str]  # names of options that may change when a run is resumed
    own: list[str]  # names of those that may differ between ranks, too

    def error(self, message: str) -> NoReturn:
        """Exits with one line, which says where --amp float8 is if this script lacks it."""
        if re.search("--amp: invalid choice: 'float8'|unrecognized arguments:.* --amp", message):
            message += "; --amp float8 is for scripts that end in _nd.py, _ddp.py and _fsdp.py"
        super().error(message)


def new_parser(doc: str | None) -> Parser:
    """Returns a parser, without options, of a script with this docstring, None under -OO."""
    return Parser(
        description=(doc or "").split("\n\n")[0] + " @FILE stands for the options in a file.",
        epilog="docs/recipes.md lists what options of other projects are called here.",
        usage=argparse.SUPPRESS,  # or each error would print all of it
        allow_abbrev=False,
    )


def add_run_options(
    parser: argparse.ArgumentParser, measures: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Adds when a run ends, its folder and its device; returns the names of free options and of
    each rank's own. `measures` are the names that --best and --desired take; the first selects the
    best model by default."""
    add = parser.add_argument_group("when to stop").add_argument
    add(
        "--steps-per-epoch",
        type=option_types.positive_int,
        help="end epochs after N steps (default: all)",
    )
    add(
        "--budget-hours",
        type=option_types.positive,
        help="train for this many hours in all, then validate and end (default: no limit)",
    )
    add(
        "--desired",
        nargs=2,
        metavar=("MEASURE", "VALUE"),
        action="append",
        help="end after an epoch that is this good in all given (default: none): "
        + ", ".join(measures),
    )
    add(
        "--patience",
        type=option_types.positive_int,
        metavar="EPOCHS",
        help="early stopping: end after this many epochs without a better --best (default: off)",
    )
    add(
        "--timeout",
        type=option_types.number_between(float, 0, 1e8),
        default=600,
        help="end after this many seconds without a step; 0 = off",
    )

    add = parser.add_argument_group("checkpoints and logs").add_argument
    add(
        "--output-dir",
        metavar="FOLDER",
        help="the run: its checkpoints and logs; if it has a checkpoint, it is resumed "
        "(default: a new folder in runs/)",
    )
    add(
        "--resume",
        metavar="PATH",
        help="begin another run from a checkpoint, or from a folder's newest (default: none)",
    )
    add(
        "--checkpoint-minutes",
        type=option_types.non_negative,
        default=15,
        help="save every N minutes, besides after each epoch; 0 = off",
    )
    add(
        "--best",
        choices=measures,
        help=f"measure that selects model_best.pt (default: the first --desired, or {measures[0]})",
    )
    add(
        "--keep-every",
        type=option_types.positive_int,
        metavar="EPOCHS",
        help="also keep every N-th epoch's checkpoint, as epoch-N.pt (default: off)",
    )
    add("-e", "--evaluate", action="store_true", help="validate once and end")
    add(
        "-p",
        "--print-freq",
        type=option_types.positive_int,
        default=10,
        help="print and log every N steps",
    )

    add = parser.add_argument_group("device and reproducibility").add_argument
    add("--compile", action="store_true", help="torch.compile; the first steps take minutes")
    add(
        "--compile-mode",
        choices=["default", "reduce-overhead", "max-autotune"],
        default="default",
        help="reduce-overhead uses CUDA graphs",
    )
    add(
        "--checkpoint-activations",
        action="store_true",
        help="keep only the inputs of each block, and compute the rest again in the backward pass: "
        "less memory, for a second forward pass",
    )
    add(
        "--gpu", type=option_types.non_negative_int, help="use only this GPU, from 0 (default: all)"
    )
    add("--no-accel", action="store_true", help="use the CPU even where there is a GPU")
    add("--seed", type=option_types.non_negative_int, default=0, help="seed of everything random")
    add("--deterministic", action="store_true", help="repeat bit for bit on GPUs too; slower")
    free = ["best", "budget_hours", "desired", "evaluate", "patience", "print_freq", "resume"]
    own = ["checkpoint_activations", "checkpoint_minutes", "compile", "compile_mode"]
    own += ["deterministic", "gpu", "keep_every", "no_accel", "output_dir", "timeout"]
    return free, own


def set_defaults(parser: argparse.ArgumentParser, **defaults: option_types.Value) -> None:
    """Sets defaults, and adds each to its option's help."""
    parser.set_defaults(**defaults, desired=[])
    for action in parser._actions:
        help_text = action.help or ""
        if action.nargs != 0 and action.default is not None and "default" not in help_text:
            action.help = f"{help_text} (default: %(default)s)"


def read_options(
    parser: argparse.ArgumentParser,
    measures: Mapping[str, tuple[str, float, float]],
    argv: Sequence[str] | None = None,
) -> argparse.Namespace:
    """Returns the options as typed; exits with one line if one is wrong, or if options of
    add_run_options(), or --epochs and --start-epoch, exclude each other. `measures` has {tag: (its
    name in a checkpoint, its worst value, its best)}; --desired takes the tags in lower case, and
    becomes [[tag, number]]. What is 100 at best is in %."""
    words = sys.argv[1:] if argv is None else argv
    args = parser.parse_args(expand_files(parser, words))
    known = {tag.lower(): tag for tag in measures}
    for each in args.desired:
        measure, goal = each
        if measure not in known:
            parser.error(f"--desired {measure}: it takes one of {', '.join(known)}, and a number")
        _name, *ends = measures[known[measure]]
        unit = " %" if ends[1] == 100 else ""
        least, most = (max(-1e12, min(1e12, end)) for end in sorted(ends))
        try:
            value = option_types.number_between(float, least, most)(goal)
        except argparse.ArgumentTypeError as error:
            parser.error(f"--desired {measure}: {error}{unit}")
        if unit and value < 1 and isinstance(goal, str):  # of a short form it is a number
            less = f"--desired {measure} {goal} is less than 1 %"
            form = "only --desired-acc takes a fraction, such as 0.75"
            parser.error(f"{less}: give it in %, such as 75; {form}")
        each[:] = known[measure], value
    if (args.start_epoch or 0) >= args.epochs:
        parser.error(f"--start-epoch {args.start_epoch} is not below --epochs {args.epochs}")
    if "" in (args.resume, args.output_dir):
        parser.error("--resume and --output-dir need a name")
    # Not all scripts have all of these.
    for names in ("gpu", "no_accel"), ("freeze", "sync_bn"), ("global_batch", "accumulation"):
        if all(getattr(args, name, None) != parser.get_default(name) for name in names):
            options = " and ".join(f"--{name.replace('_', '-')}" for name in names)
            parser.error(f"{options} exclude each other")
    return args


def expand_files(
    parser: argparse.ArgumentParser, words: Sequence[str], within: tuple[str, ...] = ()
) -> list[str]:
    """Returns these words, with those of the file in place of each @FILE, which is read as a shell
    reads lines; # begins a comment. `within` are the files that the words are from. Exits with one
    line if a file cannot be read: argparse, which could read them, does not say which."""
    found = []
    for word in words:
        path = word[1:]
        if word[:1] != "@":
            found.append(word)
            continue
        if path in within:
            parser.error(f"{within[-1]} contains @{path}, which contains it")
        try:
            lines = Path(path).read_text("utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            parser.error(f"@{path}: {getattr(error, 'strerror', None) or error}")
        for number, line in enumerate(lines, 1):
            try:
                more = shlex.split(line, comments=True)
            except ValueError as error:  # an open quote, a backslash at the end
                parser.error(f"{path}, line {number}: {error}: {line[:80]!r}")
            found += expand_files(parser, more, (*within, path))
    return found


def not_default(
    options: Mapping[str, option_types.Value], parser: argparse.ArgumentParser
) -> dict[str, option_types.Value]:
    """Returns those of {name: value} that are options of this parser, not at their defaults."""
    defaults = vars(parser.parse_args([]))
    return {name: each for name, each in options.items() if each != defaults.get(name, each)}
