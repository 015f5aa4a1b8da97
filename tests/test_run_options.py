"""The options that all scripts have, as a script of three lines adds and reads them."""

import functools
import math
import re

import pytest

from trainparts import option_types, run_options

BEST = {  # as a script's
    "Top1": ("best_acc1", 0.0, 100.0),
    "Loss": ("best_loss", math.inf, 0.0),
    "MCC": ("best_mcc", -1.0, 1.0),
}
MEASURES = [tag.lower() for tag in BEST]


def parser_of(**defaults):
    """Returns a parser of a script with these options and some of its own."""
    parser = run_options.new_parser("Trains a model.\n\nMore of it.")
    run_options.add_run_options(parser, MEASURES)
    parser.add_argument("--epochs", type=option_types.positive_int, help="train this long")
    parser.add_argument("--start-epoch", type=option_types.non_negative_int)
    parser.add_argument("--global-batch", type=int)
    parser.add_argument("--accumulation", type=int)
    run_options.set_defaults(parser, **{"epochs": 90, "accumulation": 1} | defaults)
    return parser


def options(*words, **defaults):
    return run_options.read_options(parser_of(**defaults), BEST, words)


@pytest.fixture
def refusal(capsys):
    """refusal(*words): returns the one line of what is refused, without the program's name."""

    def refuse(*words):
        with pytest.raises(SystemExit) as ended:
            options(*words)
        assert ended.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line.partition(": error: ")[2]

    return refuse


def test_defaults_are_those_of_the_help():
    found = vars(options())
    assert found == {
        "steps_per_epoch": None,
        "budget_hours": None,
        "desired": [],
        "patience": None,
        "timeout": 600,
        "output_dir": None,
        "resume": None,
        "checkpoint_activations": False,
        "checkpoint_minutes": 15,
        "best": None,
        "keep_every": None,
        "evaluate": False,
        "print_freq": 10,
        "compile": False,
        "compile_mode": "default",
        "gpu": None,
        "no_accel": False,
        "seed": 0,
        "deterministic": False,
        "epochs": 90,
        "start_epoch": None,
        "global_batch": None,
        "accumulation": 1,
    }


def test_what_is_typed_is_read_as_its_type():
    words = "--steps-per-epoch 5 --budget-hours 1.5 --patience 3 --timeout 0 --output-dir run"
    words += " --resume x.pt --checkpoint-minutes 0.5 --best loss --keep-every 2 -e -p 4 --compile"
    words += " --compile-mode max-autotune --no-accel --seed 7 --deterministic --start-epoch 0"
    found = vars(options(*words.split()))
    assert found == vars(options()) | {
        "steps_per_epoch": 5,
        "budget_hours": 1.5,
        "patience": 3,
        "timeout": 0.0,
        "output_dir": "run",
        "resume": "x.pt",
        "checkpoint_minutes": 0.5,
        "best": "loss",
        "keep_every": 2,
        "evaluate": True,
        "print_freq": 4,
        "compile": True,
        "compile_mode": "max-autotune",
        "no_accel": True,
        "seed": 7,
        "deterministic": True,
        "start_epoch": 0,
    }
    assert options("--gpu", "0").gpu == 0


def test_what_may_change_and_what_is_each_ranks_own_are_options():
    parser = run_options.new_parser("x")
    free, own = run_options.add_run_options(parser, MEASURES)
    run_options.set_defaults(parser)
    names = vars(parser.parse_args([])).keys()
    assert {*free} | {*own} <= names and not {*free} & {*own}
    assert names - {*free} - {*own} == {"steps_per_epoch", "seed"}, "they define what is trained"
    assert {*run_options.ENDS_BY} - {"epochs"} <= {*free}


def test_the_help_has_the_defaults_once():
    text = " ".join(parser_of(best="loss").format_help().split())
    assert text.startswith("Trains a model. @FILE stands for the options in a file. options:")
    assert "docs/recipes.md lists what options of other projects are called here." in text
    assert "print and log every N steps (default: 10)" in text
    assert "train this long (default: 90)" in text
    assert "end epochs after N steps (default: all)" in text
    assert "end after this many seconds without a step; 0 = off (default: 600)" in text
    assert "(default: the first --desired, or top1)" in text
    assert "good in all given (default: none): top1, loss, mcc" in text
    assert "validate once and end -p" in text, "a switch has no default"
    assert not re.search(r"\(default: \[\]\)|\(default: [^)]*\) \(default", text)


def test_all_that_is_desired_is_read_by_tags():
    found = options("--desired", "top1", "75", "--desired", "loss", "1.5").desired
    assert found == [["Top1", 75.0], ["Loss", 1.5]]
    assert options().desired == [], "a default is not changed by another start"


@pytest.mark.parametrize(
    "words", ["top1 1", "top1 100", "mcc -1", "mcc 1", "mcc 0.01", "loss 1e12"]
)
def test_goals_within_a_measure_s_range(words):
    ((_tag, goal),) = options("--desired", *words.split()).desired
    assert goal == float(words.split()[1])


def test_a_short_form_gives_a_number_in_the_measure_s_unit():
    """--desired-acc 0.005 is 0.5 %, in a unit that nobody mistakes."""
    parser = parser_of()
    add = functools.partial(parser.add_argument, "--desired-acc", dest="desired", action="append")
    add(type=lambda text: ["top1", 100 * float(text)])
    found = run_options.read_options(parser, BEST, ["--desired-acc", "0.005"])
    assert found.desired == [["Top1", 0.5]]


UNIT = " is less than 1 %: give it in %, such as 75; only --desired-acc takes a fraction, such as "
UNIT += "0.75"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("Top1 75", "--desired Top1: it takes one of top1, loss, mcc, and a number"),
        ("f1 1", "--desired f1: it takes one of top1, loss, mcc, and a number"),
        ("loss low", "--desired loss: low is no float from 0.0 to 1000000000000.0"),
        ("loss nan", "--desired loss: nan is no float from 0.0 to 1000000000000.0"),
        ("loss inf", "--desired loss: inf is no float from 0.0 to 1000000000000.0"),
        ("loss -0.1", "--desired loss: -0.1 is no float from 0.0 to 1000000000000.0"),
        ("loss 1 --desired top1 101", "--desired top1: 101 is no float from 0.0 to 100.0 %"),
        ("top1 -1", "--desired top1: -1 is no float from 0.0 to 100.0 %"),
        ("mcc 50", "--desired mcc: 50 is no float from -1.0 to 1.0"),
        ("top1 0.75", f"--desired top1 0.75{UNIT}"),
        ("top1 0.999", f"--desired top1 0.999{UNIT}"),
        ("top1 0", f"--desired top1 0{UNIT}"),
    ],
)
def test_another_measure_or_no_goal_of_it_is_refused(words, line, refusal):
    assert refusal("--desired", *words.split()) == line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--epochs 2 --start-epoch 2", "--start-epoch 2 is not below --epochs 2"),
        ("--start-epoch 91", "--start-epoch 91 is not below --epochs 90"),
        ("--resume=", "--resume and --output-dir need a name"),
        ("--output-dir=", "--resume and --output-dir need a name"),
        ("--gpu 0 --no-accel", "--gpu and --no-accel exclude each other"),
        ("--global-batch 8 --accumulation 2", "--global-batch and --accumulation exclude each oth"),
        ("--seed -1", "argument --seed: -1 is no int from 0 to 9223372036854775807"),
        ("--patience 0", "argument --patience: 0 is no int from 1 to 9223372036854775807"),
        ("--timeout 1e9", "argument --timeout: 1e9 is no float from 0 to 100000000.0"),
        ("--budget-hours 0", "argument --budget-hours: 0 is no float from 1e-12 to 1000000000000"),
        ("--checkpoint-minutes -1", "argument --checkpoint-minutes: -1 is no float from 0 to 1000"),
        ("--print-freq 0", "argument -p/--print-freq: 0 is no int from 1 to 9223372036854775807"),
        ("--best f1", "argument --best: invalid choice: 'f1' (choose from "),
        ("--print 5", "unrecognized arguments: --print 5"),  # no abbreviation
    ],
)
def test_what_is_wrong_ends_in_one_line(words, line, refusal):
    assert refusal(*words.split()).startswith(line)


def test_what_does_not_exclude_each_other_is_taken():
    assert options("--start-epoch", "89").start_epoch == 89
    assert options("--global-batch", "8", "--accumulation", "1").global_batch == 8
    parser = run_options.new_parser("x")  # a script without most of the options
    parser.add_argument("--epochs", type=int, default=1)
    for name in "--start-epoch", "--resume", "--output-dir":
        parser.add_argument(name)
    run_options.set_defaults(parser)
    assert run_options.read_options(parser, BEST, ["--resume", "x"]).resume == "x"


# ------------------------------------------------------------------------------ options in files


def test_a_file_of_options_is_read_as_a_shell_reads_it(tmp_path):
    path = tmp_path / "my options"
    path.write_text("# of a run\n--seed 3  # of all\n\n--output-dir 'my run' -p \\5\n")
    found = options(f"@{path}", "--seed", "4")
    assert (found.seed, found.output_dir, found.print_freq) == (4, "my run", 5)
    assert options("--seed", "4", f"@{path}").seed == 3, "what is last counts"
    (tmp_path / "all").write_text(f"'@{path}' --epochs 7", "utf-8-sig")  # as Windows' editors do
    assert vars(options(f"@{tmp_path}/all")) == vars(options(f"@{path}", "--epochs", "7"))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"--seed '3", 'options, line 1: No closing quotation: "--seed \'3"'),
        (b"# one\n--seed \\\n3", "options, line 2: No escaped character: '--seed \\\\'"),
        (b"--seed \xff", "@options: 'utf-8' codec can't decode byte 0xff"),
        (b"@options", "options contains @options, which contains it"),
        (b"@other", "other contains @options, which contains it"),
        (b"--seed x", "argument --seed: x is no int from 0 to 9223372036854775807"),
        (None, "@options: No such file or directory"),
    ],
)
def test_a_file_that_is_none_of_options_ends_in_one_line(
    content, line, refusal, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "options").write_bytes(content)
    (tmp_path / "other").write_text("--gpu 1 @options\n")
    assert line in refusal("@options")


def test_options_at_their_defaults_are_left_out():
    found = vars(options("--seed", "3", "--epochs", "90", "--budget-hours", "2"))
    assert run_options.not_default(found, parser_of()) == {"seed": 3, "budget_hours": 2.0}
    assert run_options.not_default(found, parser_of(epochs=4)) == {
        "seed": 3,
        "budget_hours": 2.0,
        "epochs": 90,
    }
    # What is no option of the parser is no part of it.
    assert run_options.not_default({"classes": 10, "desired": []}, parser_of()) == {}
    assert run_options.not_default({"no_accel": True}, parser_of()) == {"no_accel": True}
