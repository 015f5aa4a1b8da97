"""Lines about a run for people: to the word, with the numbers that are right."""

from pathlib import Path

import pytest

from trainparts import package_digest, run_options
from trainparts.runs import run_messages


@pytest.mark.parametrize(
    ("optimizer", "lr", "usual", "named"),
    [
        ("sgd", 0.1, "sgd", False),
        ("nesterov", 0.1, "sgd", False),
        ("lars", 0.1, "sgd", False),
        ("adamw", 0.1, "sgd", True),
        ("lamb", 0.1, "sgd", True),
        ("muon", 0.1, "sgd", True),
        ("adamw", 0.001, "sgd", False),  # which is typed
        ("sgd", 0.1, "adamw", True),
        ("lars", 0.1, "adamw", True),
        ("lamb", 0.1, "adamw", False),
        ("sgd", 0.2, "adamw", False),
    ],
)
def test_a_usual_rate_for_the_other_family_is_named(optimizer, lr, usual, named):
    line = f"--lr 0.1 is meant for {usual}, not for {optimizer}: set --lr"
    assert run_messages.about_rate(optimizer, lr, usual, 0.1) == [line] * named


def resumed(**more):
    """Returns the metadata of a run's checkpoint, of 3 epochs of --epochs 3."""
    metadata = {"args": {"epochs": 3}, "path": "one/checkpoint.pt", "in_place": True}
    return metadata | {"logged": [1, 2, 3], "end": {}} | more


@pytest.mark.parametrize(
    ("epochs", "epoch", "step", "lines"),
    [
        (3, 2, 4, ["Resuming one/checkpoint.pt after 3 of 3 epochs"]),
        (3, 1, 0, ["Resuming one/checkpoint.pt after 1 of 3 epochs"]),
        (3, 2, 1, ["Resuming one/checkpoint.pt after 2 of 3 epochs and 1 steps"]),
        (
            4,
            2,
            4,
            [
                "--epochs 4, before 3: the learning rate follows the new one",
                "Resuming one/checkpoint.pt after 3 of 4 epochs",
            ],
        ),
    ],
)
def test_a_run_that_resumes_says_from_where(epochs, epoch, step, lines):
    metadata = resumed(logged=[])
    of_run = {"epochs": epochs, "epoch": epoch, "step": step, "steps": 4}
    assert run_messages.about_resuming(metadata, **of_run) == lines


@pytest.mark.parametrize(
    ("logged", "in_place", "named"),
    [([1, 2, 3], True, False), ([1, 2, 3, 4], True, True), ([], True, False), ([9], False, False)],
)
def test_only_later_epochs_of_the_run_s_own_log_are_named(logged, in_place, named):
    """After the third epoch's last step, the log has the third."""
    metadata = resumed(logged=logged, in_place=in_place)
    lines = run_messages.about_resuming(metadata, epochs=4, epoch=2, step=4, steps=4)
    assert lines[2:] == ["The log has later epochs: they are trained again"] * named


@pytest.mark.parametrize("saved_by", ["0.4.0+0123456789ab", package_digest.IDENTITY, None])
def test_another_package_than_the_checkpoint_s_is_named(saved_by):
    """Checkpoints of before it was noted have none."""
    metadata = resumed() | ({"trainparts": saved_by} if saved_by else {})
    lines = run_messages.about_resuming(metadata, epochs=3, epoch=2, step=4, steps=4)
    this = package_digest.IDENTITY
    line = f"It was saved with trainparts 0.4.0+0123456789ab, this is {this}"
    assert lines[1:] == ([line] if saved_by not in (None, this) else [])


SAME = "the same command again resumes it"
ADD = "to resume it, add to the command: --output-dir"


@pytest.mark.parametrize(
    ("typed", "resume", "lines"),
    [
        ("my run", None, [f"Logs and checkpoints: my run; {SAME}"]),
        ("my run", "x.pt", [f"Logs and checkpoints: my run; {SAME}"]),
        (None, None, [f"Logs and checkpoints of this run; {ADD} 'my run'"]),
        (
            None,
            "x.pt",
            [
                "The same command again begins from x.pt again, in another folder",
                f"Logs and checkpoints of this run; {ADD} 'my run'",
            ],
        ),
    ],
)
def test_a_run_that_begins_says_how_to_resume_it(typed, resume, lines):
    assert run_messages.about_folder(Path("my run"), typed, resume) == lines


def test_how_to_resume_is_what_a_shell_takes():
    assert run_messages.how_to_resume("x", None) == SAME
    assert run_messages.how_to_resume(None, Path("runs/x")) == f"{ADD} runs/x"
    assert run_messages.how_to_resume(None, Path("it's")) == f"{ADD} 'it'\"'\"'s'"


CURVE = "the run resumes on the same curve, except for BatchNorm's statistics"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({"accumulation": 3}, " --accumulation 1"),
        ({"base_lr": 0.1 * 3 / 7}, " --base-lr 0.042857142857142864"),  # all digits are compared
        ({"base_lr": 0.25}, " --base-lr 0.25"),
        ({"compile_mode": "max-autotune"}, " --compile-mode default"),
        ({"folder": Path("runs/a b")}, " --output-dir 'runs/a b'"),
        (
            {"folder": "x", "compile_mode": "reduce-overhead", "base_lr": 0.5, "accumulation": 2},
            " --accumulation 1 --base-lr 0.5 --compile-mode default --output-dir x",
        ),
    ],
)
def test_what_to_add_for_a_smaller_batch(more, words):
    of_run = {"accumulation": 1, "base_lr": None, "compile_mode": "default", "folder": None} | more
    line = f"add to the command: -b 4 --global-batch 500{words}: {CURVE}"
    assert run_messages.with_smaller_batch(4, 500, **of_run) == line


def test_what_to_add_for_activation_checkpointing():
    same = "the run resumes on the same curve, slower by a second forward pass"
    words = "add to the command: --checkpoint-activations"
    assert run_messages.with_checkpointing(None) == f"{words}: {same}"
    folder = Path("runs/a b")
    assert run_messages.with_checkpointing(folder) == f"{words} --output-dir 'runs/a b': {same}"


UNTIL = {"epochs": 4, "desired": [], "patience": None, "budget_hours": None, "best": None}


def why(metadata, until=UNTIL, epochs=4, epoch=1, step=4):
    """Returns why_over() of a run with four steps in an epoch."""
    return run_messages.why_over(metadata, until, epochs=epochs, epoch=epoch, step=step, steps=4)


ENDED = {"until": UNTIL, "epochs": 2, "reason": "target reached"}


def test_a_run_that_ended_says_why_and_what_to_change():
    line = "target reached (2/4 epochs); to train longer, change what ended it"
    assert why(resumed(end=ENDED)) == line
    spent = ENDED | {"epochs": 1 + 3 / 4, "reason": "the budget is spent"}
    line = "the budget is spent (1.75/4 epochs); to train longer, change what ended it"
    assert why(resumed(end=spent), epoch=1, step=3) == line
    thirds = ENDED | {"epochs": 4 / 3}
    found = run_messages.why_over(resumed(end=thirds), UNTIL, epochs=4, epoch=1, step=1, steps=3)
    assert found == "target reached (1.33/4 epochs); to train longer, change what ended it"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("epochs", 3),
        ("desired", [["Top1", 1.0]]),
        ("patience", 2),
        ("budget_hours", 1.0),
        ("best", "loss"),
    ],
)
def test_a_run_is_over_until_what_ended_it_is_changed(name, other):
    assert name in run_options.ENDS_BY and len(run_options.ENDS_BY) == 5
    assert why(resumed(end=ENDED), UNTIL | {name: other}) is None


def test_a_run_that_has_not_come_to_its_end_is_not_over():
    """As one that was killed after it went on from there; or another run's checkpoint."""
    assert why(resumed(end=ENDED), step=3) is None
    assert why(resumed(end=ENDED), epoch=2, step=1) is None
    assert why(resumed()) is None
    other = resumed(in_place=False)
    del other["end"]
    assert why(other) is None
    assert why(other, epoch=4, step=0) is None


def test_a_run_of_more_epochs_than_are_asked_for_is_over():
    line = "2 epochs are done; to train longer, raise --epochs 2"
    assert why(resumed(), epochs=2, epoch=2, step=0) == line
    line = "3.5 epochs are done; to train longer, raise --epochs 2"
    assert why(resumed(end=ENDED), epochs=2, epoch=3, step=2) == line
    assert why(resumed(), epochs=2, epoch=1, step=4) is None, "it is validated"
